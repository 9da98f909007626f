#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include "diagnose/verdict/crash_report.h"
#include "lockstep/base/internal/deadline.h"
#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// Where a Python thread of another process is.
struct PythonThread {
  bool took_signal = false;          ///< the main one, unless that blocks the signal
  std::vector<SourceLine> frames{};  ///< the innermost first
};

/// What Python's module faulthandler has written. Pure.
std::vector<PythonThread> parse_python_stacks(std::string_view text);

/// The stacks of a worker's Python threads, which the worker writes into a pipe when it gets a
/// signal: whatever it does, unless it is stopped.
class PythonStacks {
 public:
  PythonStacks() = default;
  /// What the worker has sent. The stacks end with a zero byte.
  PythonStacks(UniqueFd read_end, int signal);

  /// Returns false for a process without Python, and one that is stopped or would die of the
  /// signal.
  bool ask(pid_t process) const noexcept;

  /// What has come by the deadline, after ask().
  std::vector<PythonThread> read(Deadline deadline) const;

 private:
  UniqueFd read_end_;
  int signal_ = 0;
};

}  // namespace lockstep::inline internal
