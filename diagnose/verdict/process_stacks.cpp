#include "diagnose/verdict/process_stacks.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string_view>

#ifdef LOCKSTEP_HAS_LIBDW
#include <elfutils/libdwfl.h>
#endif
#include <sys/prctl.h>
#include <unistd.h>

#include "diagnose/verdict/module_symbols.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/files/pipe.h"
#include "lockstep/os/process/helper_process.h"

namespace lockstep::inline internal {
namespace {

// A helper writes a line for each thread and for each of its frames, the fields apart by tabs.
constexpr std::string_view kThread = "thread";
constexpr std::string_view kFrame = "frame";
constexpr std::string_view kTrouble = "trouble";

// "4711 (name) S …"
void read_state(pid_t process, ThreadStack& thread) {
  std::ifstream file(concat("/proc/", process, "/task/", thread.id, "/stat"));
  std::string text;
  std::getline(file, text);
  const auto begin = text.find('(');
  const auto end = text.rfind(") ");
  if (begin == std::string::npos || end == std::string::npos || end + 2 >= text.size()) return;
  thread.name = text.substr(begin + 1, end - begin - 1);
  std::ranges::replace_if(
      thread.name, [](char c) { return c == '\t' || c == '\n'; }, ' ');
  thread.state = text[end + 2];
}

std::vector<ThreadStack> threads_of(pid_t process) {
  std::vector<ThreadStack> threads;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(concat("/proc/", process, "/task"), error)) {
    ThreadStack& thread = threads.emplace_back();
    const std::string name = entry.path().filename();
    std::from_chars(name.data(), name.data() + name.size(), thread.id);
    read_state(process, thread);
  }
  std::ranges::sort(threads, {}, &ThreadStack::id);
  const auto is_main = [&](const ThreadStack& thread) { return thread.id == process; };
  std::stable_partition(threads.begin(), threads.end(), is_main);
  return threads;
}

#ifdef LOCKSTEP_HAS_LIBDW

constexpr std::size_t kMostFrames = 64;

// Nobody waits for a server of debug information.
int find_no_debuginfo(Dwfl_Module*, void**, const char*, Dwarf_Addr, const char*, const char*,
                      GElf_Word, char**) {
  return -1;
}

constexpr Dwfl_Callbacks kCallbacks = {.find_elf = dwfl_linux_proc_find_elf,
                                       .find_debuginfo = find_no_debuginfo,
                                       .section_address = nullptr,
                                       .debuginfo_path = nullptr};

StackFrame frame_at(Dwfl* dwfl, Dwarf_Addr address) {
  StackFrame frame{.address = address};
  Dwfl_Module* const module = dwfl_addrmodule(dwfl, address);
  if (module == nullptr) return frame;
  SourceLine line;
  if (const char* const symbol = dwfl_module_addrname(module, address)) {
    line.function = readable_name(symbol);
  }
  if (Dwfl_Line* const source = dwfl_module_getsrc(module, address)) {
    const char* const path = dwfl_lineinfo(source, nullptr, &line.line, nullptr, nullptr, nullptr);
    if (path != nullptr) line.file = path;
  }
  // What has been looked into has a file.
  Dwarf_Addr begin = 0;
  const char* file = nullptr;
  dwfl_module_info(module, nullptr, &begin, nullptr, nullptr, nullptr, &file, nullptr);
  frame.module = file != nullptr ? file : "";
  frame.offset = address - begin;
  if (!line.function.empty()) frame.lines.push_back(std::move(line));
  return frame;
}

struct Walk {
  Dwfl* dwfl;
  std::vector<StackFrame> frames{};
};

int take_frame(Dwfl_Frame* frame, void* data) {
  auto& walk = *static_cast<Walk*>(data);
  Dwarf_Addr address = 0;
  bool is_exact = false;
  if (!dwfl_frame_pc(frame, &address, &is_exact)) return DWARF_CB_ABORT;
  // A return address is that of the next instruction, which may be of the next function.
  walk.frames.push_back(frame_at(walk.dwfl, is_exact ? address : address - 1));
  return walk.frames.size() < kMostFrames ? DWARF_CB_OK : DWARF_CB_ABORT;
}

// Writes what it has found at once: the next thread may be one that never answers.
void write_stacks(pid_t process, int fd, Deadline deadline) {
  Dwfl* const dwfl = dwfl_begin(&kCallbacks);
  const bool attached = dwfl != nullptr && dwfl_linux_proc_report(dwfl, process) == 0 &&
                        dwfl_report_end(dwfl, nullptr, nullptr) == 0 &&
                        dwfl_linux_proc_attach(dwfl, process, false) == 0;
  std::string trouble = attached ? "" : dwfl_errmsg(-1);
  for (const ThreadStack& thread : threads_of(process)) {
    std::string text =
        concat(kThread, "\t", thread.id, "\t", thread.state, "\t", thread.name, "\n");
    Walk walk{.dwfl = dwfl};
    if (attached) {
      dwfl_errno();
      dwfl_getthread_frames(dwfl, thread.id, take_frame, &walk);
      if (walk.frames.empty() && trouble.empty()) trouble = dwfl_errmsg(-1);
    }
    for (const StackFrame& frame : walk.frames) {
      const SourceLine line = frame.lines.empty() ? SourceLine() : frame.lines.front();
      text += concat(kFrame, "\t", frame.address, "\t", frame.offset, "\t", line.line, "\t",
                     frame.module, "\t", line.file, "\t", line.function, "\n");
    }
    write_all(fd, text, deadline);
  }
  // Detaches, also from what was stopped before.
  if (dwfl != nullptr) dwfl_end(dwfl);
  if (!trouble.empty()) write_all(fd, concat(kTrouble, "\t", trouble, "\n"), deadline);
}

#else

void write_stacks(pid_t process, int fd, Deadline deadline) {
  std::string text;
  for (const ThreadStack& thread : threads_of(process)) {
    text += concat(kThread, "\t", thread.id, "\t", thread.state, "\t", thread.name, "\n");
  }
  write_all(fd, text + concat(kTrouble, "\tbuilt without elfutils' libdw\n"), deadline);
}

#endif

bool is_stopped(pid_t process) {
  ThreadStack main{.id = process};
  read_state(process, main);
  return main.state == 'T';
}

/// A helper that reads one process.
class Reader {
 public:
  Reader(pid_t process, Deadline deadline) : process_(process), was_stopped_(is_stopped(process)) {
    Pipe pipe = make_pipe();
    pipe_ = std::move(pipe.read_end);
    helper_.emplace("lockstep-stacks", [&](int) {
      // It is of no use after the launcher, whatever it is busy with.
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      write_stacks(process, pipe.write_end.get(), deadline);
    });
  }
  // ptrace stops threads by SIGSTOP. Where the helper is killed before a thread has reported it,
  // the signal stays, and would stop the process for good.
  ~Reader() {
    if (!helper_ || helper_->ended()) return;
    ::kill(helper_->pid(), SIGKILL);
    constexpr std::chrono::milliseconds kEndTakes{100};
    helper_->finish(Deadline::after(kEndTakes));
    if (!was_stopped_) ::kill(process_, SIGCONT);
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  int pipe() const { return pipe_.get(); }

 private:
  const pid_t process_;
  const bool was_stopped_;
  UniqueFd pipe_{};
  std::optional<HelperProcess> helper_{};
};

// The text up to the next tab, which is taken away with it.
std::string_view take_field(std::string_view& line) {
  const auto end = std::min(line.find('\t'), line.size());
  const std::string_view field = line.substr(0, end);
  line.remove_prefix(std::min(end + 1, line.size()));
  return field;
}

template <class Number>
Number take_number(std::string_view& line) {
  const std::string_view field = take_field(line);
  Number number = 0;
  std::from_chars(field.data(), field.data() + field.size(), number);
  return number;
}

void take_line(std::string_view line, ProcessStacks& stacks) {
  const std::string_view kind = take_field(line);
  if (kind == kThread) {
    ThreadStack& thread = stacks.threads.emplace_back();
    thread.id = take_number<pid_t>(line);
    const std::string_view state = take_field(line);
    if (!state.empty()) thread.state = state.front();
    thread.name = line;
  } else if (kind == kFrame && !stacks.threads.empty()) {
    StackFrame& frame = stacks.threads.back().frames.emplace_back();
    frame.address = take_number<std::uint64_t>(line);
    frame.offset = take_number<std::uint64_t>(line);
    SourceLine source{.line = take_number<int>(line)};
    frame.module = take_field(line);
    source.file = take_field(line);
    source.function = line;
    if (!source.function.empty()) frame.lines.push_back(std::move(source));
  } else if (kind == kTrouble) {
    stacks.trouble = line;
  }
}

ProcessStacks parse(std::string_view text, bool is_whole) {
  ProcessStacks stacks;
  // The last line may be cut.
  for (auto end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
    take_line(text.substr(0, end), stacks);
    text.remove_prefix(end + 1);
  }
  if (!is_whole && stacks.trouble.empty()) stacks.trouble = "reading it timed out";
  return stacks;
}

}  // namespace

std::vector<ProcessStacks> read_stacks(const std::vector<pid_t>& processes,
                                       Deadline deadline) noexcept try {
  std::deque<Reader> readers;
  for (const pid_t process : processes) readers.emplace_back(process, deadline);
  std::vector<ProcessStacks> stacks;
  for (const Reader& reader : readers) {
    const std::string text = read_to_end(reader.pipe(), deadline);
    stacks.push_back(parse(text, !deadline.passed()));
  }
  return stacks;
} catch (const std::exception& error) {
  try {
    return std::vector<ProcessStacks>(processes.size(), {.trouble = error.what()});
  } catch (const std::exception&) {
    return {};
  }
}

}  // namespace lockstep::inline internal
