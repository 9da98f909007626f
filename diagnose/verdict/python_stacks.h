#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include "diagnose/verdict/crash_report.h"
#include "lockstep/base/internal/deadline.h"
#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// The stack of a Python thread of another process.
struct PythonThread {
  bool took_signal = false;          ///< usually the main thread, unless it blocks the signal
  std::vector<SourceLine> frames{};  ///< innermost first
};

/// Parses the output of Python's module faulthandler. Pure.
std::vector<PythonThread> parse_python_stacks(std::string_view text);

/// Reads the stacks of a worker's Python threads. The worker writes them into a pipe when it gets a
/// signal, in any state except stopped.
class PythonStacks {
 public:
  PythonStacks() = default;
  /// The pipe and the signal that the worker has sent. The stacks end with a zero byte.
  PythonStacks(UniqueFd read_end, int signal);

  /// Sends the signal. Returns false for a process without Python, and for one that is stopped or
  /// that the signal would kill.
  bool ask(pid_t process) const noexcept;

  /// After ask(): the stacks that arrive before the deadline.
  std::vector<PythonThread> read(Deadline deadline) const;

 private:
  UniqueFd read_end_;
  int signal_ = 0;
};

}  // namespace lockstep::inline internal
