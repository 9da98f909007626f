#pragma once

#include <string>
#include <vector>

#include <sys/types.h>

#include "diagnose/verdict/crash_report.h"
#include "lockstep/base/internal/deadline.h"

namespace lockstep::inline internal {

/// The stack of a thread of another process.
struct ThreadStack {
  pid_t id = 0;
  std::string name{};
  char state = '?';  ///< as in /proc: R runs, S waits, D waits inside the kernel, T is stopped
  std::vector<StackFrame> frames{};  ///< innermost first
};

/// The stacks of a process.
struct ProcessStacks {
  std::vector<ThreadStack> threads{};  ///< the main thread first
  std::string trouble{};               ///< why some are missing; empty: none is
};

/// Reads the stacks of processes with elfutils' libdw. They need not cooperate, may be stopped, and
/// continue (or stay stopped) afterwards. Takes about 0.1 s; at the deadline it returns what is
/// known by then. Never throws.
/// Needs the right to trace the processes. A launcher has it for its workers, unless its container
/// denies it.
std::vector<ProcessStacks> read_stacks(const std::vector<pid_t>& processes,
                                       Deadline deadline) noexcept;

}  // namespace lockstep::inline internal
