#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/deadline.h"
#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// Advice if the system cannot start another process.
inline constexpr const char* kProcessLimits =
    "see the limits on processes (ulimit -u, pids.max) and memory";

/// Time in which a killed process ends, with a large address space too. If it does not, it is stuck
/// in the kernel.
inline constexpr std::chrono::milliseconds kTimeToDie{10'000};

/// Options of spawn_process().
struct SpawnOptions {
  /// The file to execute. Not looked up in PATH.
  std::string path{};
  /// argv, with the program's name at [0].
  std::vector<std::string> arguments{};
  /// NAME=value, the whole environment.
  std::vector<std::string> environment{};
  /// Standard streams of the program; -1: those of this process.
  int stdin_fd = -1;
  int stdout_fd = -1;
  int stderr_fd = -1;
  /// Descriptors that the program inherits under the same number; all others are closed in it.
  std::vector<int> inherited_fds{};
  /// Processors that it may run on. Empty: those of this process.
  std::vector<int> cpus{};
  /// Open folder of a control group (version 2) to start it in, if the kernel can (Linux 5.7,
  /// clone3 allowed); -1: that of this process.
  int control_group = -1;
  /// Timeout for loading the program (its file server may be down).
  std::chrono::milliseconds exec_timeout{60'000};
};

/// The program could not be executed; errno_value() is the reason.
class ExecError : public SystemError {
 public:
  using SystemError::SystemError;
};

/// Starts a program in its own session and process group (whose id is the returned pid), with no
/// signal blocked. The kernel kills it when this process ends in any way. Returns when the program
/// runs, so errors that prevent it are reported here.
/// Threads: the main thread: the kernel kills the child with the calling thread.
/// Errors: ExecError if the file cannot be executed; SystemError if no process can be created;
/// TimeoutError if loading takes longer than exec_timeout. No process is left.
pid_t spawn_process(const SpawnOptions& options);

/// How a child process ended: with an exit code, or by a signal (then exit_code is 0).
struct ChildExit {
  pid_t pid = 0;
  int exit_code = 0;
  int signal = 0;
};

/// A pidfd of a child, running or not yet reaped; it stays valid when its pid is reused. Readable,
/// for poll(2), once the child has ended.
/// Errors: SystemError.
UniqueFd open_process(pid_t pid);

/// A pidfd of any process; invalid, with errno, if there is none.
UniqueFd find_process(pid_t pid) noexcept;

/// Waits for the end of any process. Returns false if the deadline expires first.
bool wait_for_end(const UniqueFd& process, const Deadline& deadline) noexcept;

/// Sends a signal. Returns false if the process has ended and been reaped, or is not ours to
/// signal.
bool signal_process(const UniqueFd& process, int signal) noexcept;

/// Sends SIGKILL. Returns false if the process has ended and been reaped, or is not ours to kill.
bool kill_process(const UniqueFd& process) noexcept;

/// Kills a child that nobody else reaps, and waits for its end.
void kill_and_reap(pid_t pid) noexcept;

/// Reaps a child that has ended.
/// Errors: SystemError if it has not, or if another part of the program has reaped it.
ChildExit reap_child(pid_t pid);

/// Reaps any child that has ended; empty if none has.
std::optional<ChildExit> reap_any_child();

/// A child process that a signal has stopped.
struct ChildStop {
  pid_t pid = 0;
  int signal = 0;
};

/// A child that was stopped since the last call; empty if none was. A stop sends SIGCHLD, like an
/// end.
std::optional<ChildStop> next_stopped_child();

/// From now on orphaned descendants become children of this process instead of init's.
void adopt_orphans();

/// Sends a signal (0: none) to all processes of a group. Returns false if the group is empty.
bool signal_group(pid_t group, int signal) noexcept;

}  // namespace lockstep::inline internal
