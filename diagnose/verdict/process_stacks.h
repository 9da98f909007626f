#pragma once

#include <string>
#include <vector>

#include <sys/types.h>

#include "diagnose/verdict/crash_report.h"
#include "lockstep/base/internal/deadline.h"

namespace lockstep::inline internal {

/// Where a thread of another process is.
struct ThreadStack {
  pid_t id = 0;
  std::string name{};
  char state = '?';  ///< as in /proc: R runs, S waits, D waits inside the kernel, T is stopped
  std::vector<StackFrame> frames{};  ///< the innermost first
};

struct ProcessStacks {
  std::vector<ThreadStack> threads{};  ///< the first is the main one
  std::string trouble{};               ///< why there are no more; empty: those are all
};

/// Of each process, by elfutils' libdw, whatever it is written in and does: it need not help, may
/// be stopped, and goes on (or stays stopped) afterwards. Takes about 0.1 s; processes that do not
/// answer by the deadline have what was known by then. Never throws.
/// Needs the right to trace them, which a launcher has over its workers, unless its container takes
/// it away.
std::vector<ProcessStacks> read_stacks(const std::vector<pid_t>& processes,
                                       Deadline deadline) noexcept;

}  // namespace lockstep::inline internal
