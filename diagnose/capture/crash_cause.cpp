#include "diagnose/capture/crash_cause.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <typeinfo>

#include <cxxabi.h>
#include <dlfcn.h>
#include <unistd.h>

#include "lockstep/base/error.h"

namespace lockstep::inline internal {
namespace {

// Where the C library keeps what abort() was called for: an assertion or a broken heap, in words.
struct AbortMessage {
  unsigned int bytes;
  char text[1];
};
const AbortMessage* const* abort_message = nullptr;

const char* name_of(int signal) {
  switch (signal) {
    case SIGSEGV:
      return "SIGSEGV";
    case SIGBUS:
      return "SIGBUS";
    case SIGFPE:
      return "SIGFPE";
    case SIGILL:
      return "SIGILL";
    default:
      return "SIGABRT";
  }
}

bool is_stack_overflow(std::uintptr_t address, const Interrupted& interrupted) {
  // A call writes just below the stack's end; a function with large variables further below.
  constexpr std::uintptr_t kNear = 1 << 16;
  return interrupted.stack != 0 && address + kNear >= interrupted.stack &&
         address < interrupted.stack + kNear;
}

void write_abort_message(CrashText& text) {
  if (abort_message == nullptr || *abort_message == nullptr) return;
  constexpr std::size_t kMostBytes = 500;
  std::string_view message((*abort_message)->text, ::strnlen((*abort_message)->text, kMostBytes));
  while (message.ends_with('\n')) message.remove_suffix(1);
  if (!message.empty()) text.raw(" (").text(message).raw(")");
}

void write_fault(CrashText& text, int signal, const siginfo_t& info,
                 const Interrupted& interrupted) {
  const auto address = reinterpret_cast<std::uintptr_t>(info.si_addr);
  if (signal == SIGFPE) {
    if (info.si_code == FPE_INTDIV) text.raw(" (integer division by zero)");
  } else if (signal == SIGSEGV && info.si_code == SI_KERNEL) {
    text.raw(" at an address that cannot be");
  } else if (signal == SIGSEGV && is_stack_overflow(address, interrupted)) {
    text.raw(" (stack overflow)");
  } else {
    text.raw(" at address ").hexadecimal(address);
  }
}

std::string_view type_of(const std::exception& error, char* demangled) {
  if (const auto* own = dynamic_cast<const Error*>(&error)) return own->name();
  return demangled != nullptr ? demangled : typeid(error).name();
}

struct Words {
  CrashWords letters{};
  std::size_t size = 0;

  void add(std::string_view text) {
    const std::size_t count = std::min(text.size(), letters.size() - 1 - size);
    std::memcpy(letters.data() + size, text.data(), count);
    size += count;
  }
};

}  // namespace

void prepare_causes() noexcept {
  abort_message =
      reinterpret_cast<const AbortMessage* const*>(::dlsym(RTLD_DEFAULT, "__abort_msg"));
}

void write_cause(CrashText& text, int signal, const siginfo_t& info,
                 const Interrupted& interrupted) noexcept {
  text.raw(name_of(signal));
  if (info.si_code > 0) {
    write_fault(text, signal, info, interrupted);
  } else if (info.si_pid != ::getpid()) {
    text.raw(" sent by process ").decimal(static_cast<std::uint64_t>(info.si_pid));
  } else if (signal == SIGABRT) {
    write_abort_message(text);
  }
}

CrashWords describe_exception() noexcept {
  Words words;
  try {
    if (!std::current_exception()) {
      words.add("std::terminate without an exception (often a std::thread that was not joined)");
      return words.letters;
    }
    throw;
  } catch (const std::exception& error) {
    const std::unique_ptr<char, void (*)(void*)> demangled(
        abi::__cxa_demangle(typeid(error).name(), nullptr, nullptr, nullptr), std::free);
    words.add(type_of(error, demangled.get()));
    words.add(": ");
    // Errors of LibTorch carry a backtrace after the first line, of where they were made.
    const std::string_view what = error.what();
    words.add(what.substr(0, what.find('\n')));
  } catch (...) {
    words.add("an exception that is no std::exception");
  }
  return words.letters;
}

}  // namespace lockstep::inline internal
