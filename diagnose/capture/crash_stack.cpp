#include "diagnose/capture/crash_stack.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include <fcntl.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>
#include <unwind.h>

namespace lockstep::inline internal {
namespace {

struct Walk {
  std::span<CrashFrame> frames;
  std::uintptr_t first;
  std::size_t count = 0;
};

_Unwind_Reason_Code take_frame(_Unwind_Context* context, void* data) {
  auto& walk = *static_cast<Walk*>(data);
  int is_exact = 0;
  const std::uintptr_t address = _Unwind_GetIPInfo(context, &is_exact);
  // What is above the crash is its handler.
  if (walk.count == 0 && address != walk.first) return _URC_NO_REASON;
  if (walk.count == walk.frames.size() || (address == 0 && walk.count > 0))
    return _URC_END_OF_STACK;
  // A return address is that of the next instruction, which may be of the next line or function.
  walk.frames[walk.count++].address = is_exact != 0 || address == 0 ? address : address - 1;
  return _URC_NO_REASON;
}

// What a call of an address without code has pushed. Read in this way a wrong address is no crash.
std::uintptr_t return_address(std::uintptr_t stack) noexcept {
  std::uintptr_t value = 0;
  const iovec here{&value, sizeof(value)};
  const iovec there{reinterpret_cast<void*>(stack), sizeof(value)};
  return ::process_vm_readv(::getpid(), &here, 1, &there, 1, 0) == sizeof(value) ? value : 0;
}

// The next number of the text, in hexadecimal, and the one letter after it; both are taken away.
std::uintptr_t take_hexadecimal(std::string_view& text) noexcept {
  std::uintptr_t value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value, 16).ptr;
  text.remove_prefix(std::min(static_cast<std::size_t>(end - text.data()) + 1, text.size()));
  return value;
}

// Goes through the ranges in the order of their addresses.
class ModuleFinder {
 public:
  explicit ModuleFinder(std::span<CrashFrame> frames) : frames_(frames) {}

  void take(std::string_view line) noexcept {
    const MappedRange range = parse_mapped_range(line);
    if (range.file_offset == 0 && !range.path.empty()) file_begin_ = range.begin;
    if (range.path.empty()) return;
    for (CrashFrame& frame : frames_) {
      if (frame.address < range.begin || frame.address >= range.end) continue;
      if (range.path.size() >= frame.module.size()) continue;
      std::memcpy(frame.module.data(), range.path.data(), range.path.size());
      frame.offset = frame.address - file_begin_;
    }
  }

 private:
  std::span<CrashFrame> frames_;
  // Where the file's first byte is mapped, which the linkers give the address 0 in libraries.
  std::uintptr_t file_begin_ = 0;
};

}  // namespace

Interrupted interrupted_at(const void* context) noexcept {
  if (context == nullptr) return {};
  const auto& registers = static_cast<const ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  return {static_cast<std::uintptr_t>(registers.gregs[REG_RIP]),
          static_cast<std::uintptr_t>(registers.gregs[REG_RSP])};
#elif defined(__aarch64__)
  return {registers.pc, registers.sp};
#else
  static_cast<void>(registers);
  return {};
#endif
}

std::size_t collect_stack(const Interrupted& interrupted, std::span<CrashFrame> frames) noexcept {
  Walk walk{frames, interrupted.instruction};
  _Unwind_Backtrace(take_frame, &walk);
  if (walk.count > 1 || frames.size() < 2) return walk.count;
  frames[0].address = interrupted.instruction;
  const std::uintptr_t caller = return_address(interrupted.stack);
  if (caller == 0) return 1;
  frames[1].address = caller - 1;
  return 2;
}

bool is_runtime_library(std::string_view path) noexcept {
  path.remove_prefix(path.rfind('/') + 1);
  for (const std::string_view name :
       {"libc.so", "libc-", "libstdc++.so", "libc++.so", "libc++abi.so", "libgcc_s.so",
        "libpthread", "libm.so", "ld-linux"}) {
    if (path.starts_with(name)) return true;
  }
  return false;
}

MappedRange parse_mapped_range(std::string_view line) noexcept {
  // 7f0a1c000000-7f0a1c021000 r-xp 00002000 08:01 131076    /usr/lib/libc.so.6
  MappedRange range;
  range.begin = take_hexadecimal(line);
  range.end = take_hexadecimal(line);
  line.remove_prefix(std::min(line.find(' ') + 1, line.size()));
  range.file_offset = take_hexadecimal(line);
  const auto path = line.find('/');
  // The device has digits alone and the inode too: the first slash begins the path.
  if (path != std::string_view::npos) range.path = line.substr(path);
  return range.end > range.begin ? range : MappedRange{};
}

void find_modules(std::span<CrashFrame> frames) noexcept {
  const int fd = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  ModuleFinder finder(frames);
  static std::array<char, 8192> buffer;  // Not on the stack, which is a small one.
  std::size_t held = 0;
  for (;;) {
    const ssize_t got = ::read(fd, buffer.data() + held, buffer.size() - held);
    if (got <= 0) break;
    held += static_cast<std::size_t>(got);
    std::string_view rest(buffer.data(), held);
    for (auto end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
      finder.take(rest.substr(0, end));
      rest.remove_prefix(end + 1);
    }
    // A line longer than the buffer is none.
    held = rest.size() == buffer.size() ? 0 : rest.size();
    std::memmove(buffer.data(), rest.data(), held);
  }
  ::close(fd);
}

}  // namespace lockstep::inline internal
