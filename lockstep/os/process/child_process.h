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

/// What to look at when the system starts no further process.
inline constexpr const char* kProcessLimits =
    "see the limits on processes (ulimit -u, pids.max) and memory";

/// By which what was killed is gone, the end of a large address space included. What is not is
/// stuck inside the kernel.
inline constexpr std::chrono::milliseconds kTimeToDie{10'000};

struct SpawnOptions {
  /// The file to execute. Not looked up in PATH.
  std::string path{};
  /// argv, with the program's name at [0].
  std::vector<std::string> arguments{};
  /// NAME=value, the whole environment.
  std::vector<std::string> environment{};
  /// What becomes stdin, stdout and stderr; -1: those of this process.
  int stdin_fd = -1;
  int stdout_fd = -1;
  int stderr_fd = -1;
  /// Descriptors that the program gets under the same number; all others of ours are closed in it.
  std::vector<int> inherited_fds{};
  /// The only processors that it may run on. Empty: those that this process may run on.
  std::vector<int> cpus{};
  /// An open folder of a control group (version 2) to start it in, where the kernel can (Linux 5.7,
  /// clone3 allowed); -1: that of this process.
  int control_group = -1;
  /// How long the system may take to load the program (a file on a dead file server).
  std::chrono::milliseconds exec_timeout{60'000};
};

/// The program could not be executed; errno_value() says why.
class ExecError : public SystemError {
 public:
  using SystemError::SystemError;
};

/// Starts a program in a session and process group of its own (the group's id is the returned pid),
/// with no signal blocked. The kernel kills it when this process dies, however that happens.
/// Returns once the program runs, so that what keeps it from running is reported here.
/// Threads: call from the main thread: the kernel ties the child's life to the calling thread's.
/// Errors: ExecError when the file cannot be executed; SystemError when no process can be made;
/// TimeoutError when loading takes longer than exec_timeout. Nothing is left running.
pid_t spawn_process(const SpawnOptions& options);

/// How a child process ended: by itself with an exit code, or by a signal (then exit_code is 0).
struct ChildExit {
  pid_t pid = 0;
  int exit_code = 0;
  int signal = 0;
};

/// Refers to a process of ours, running or not yet reaped, even when its number is given again.
/// Readable, for poll(2), once it has ended. Errors: SystemError.
UniqueFd open_process(pid_t pid);

/// The same for any process; not valid when there is none, and errno says why.
UniqueFd find_process(pid_t pid) noexcept;

/// Waits for the end of any process. False when it has not come by the deadline.
bool wait_for_end(const UniqueFd& process, const Deadline& deadline) noexcept;

/// Sends a signal. Returns false when the process has ended and been reaped, or is not ours.
bool signal_process(const UniqueFd& process, int signal) noexcept;

/// Sends SIGKILL. Returns false when the process has ended and been reaped, or is not ours to kill.
bool kill_process(const UniqueFd& process) noexcept;

/// Kills a child that nobody else reaps, and waits for its end.
void kill_and_reap(pid_t pid) noexcept;

/// Takes note of a child that has ended. Errors: SystemError when it has not, or when another part
/// of the program has done so before.
ChildExit reap_child(pid_t pid);

/// Takes note of one child that has ended, whichever it is; nothing when none has.
std::optional<ChildExit> reap_any_child();

/// A child process that a signal has stopped.
struct ChildStop {
  pid_t pid = 0;
  int signal = 0;
};

/// One child that was stopped since the last call; nothing when none was. Sends SIGCHLD, as an end
/// does.
std::optional<ChildStop> next_stopped_child();

/// From now on processes orphaned below this one become its children instead of init's.
void adopt_orphans();

/// Sends a signal (0: none) to all processes of a group. Returns false when the group is empty.
bool signal_group(pid_t group, int signal) noexcept;

}  // namespace lockstep::inline internal
