#pragma once

#include <optional>
#include <string>
#include <vector>

#include <signal.h>

#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// "SIGTERM" for 15; "signal 40" for a signal without a name.
std::string signal_name(int signal);

/// 15 for "SIGTERM" or "TERM"; empty for other names.
std::optional<int> signal_number(const std::string& name);

/// Ignores SIGPIPE from now on, so that a write to a closed connection fails instead of killing the
/// process. Keeps a handler that the program has for SIGPIPE.
void ignore_broken_pipes();

/// What a process does with a signal whose default is to kill it.
enum class SignalFate {
  kEnds,
  /// It is delivered later: to a signalfd or sigwait, or when the process unblocks it, as shells do
  /// after they started a program.
  kBlocked,
  /// It is handled or ignored, or /proc does not show the process.
  kSpares,
};
/// What `process` does with `signal` now.
SignalFate fate_of(pid_t process, int signal);

/// Makes signals readable from a descriptor. Signals that the process ignores (for example by
/// nohup) stay ignored.
/// Threads: create it before any other thread: the mask is per thread.
/// Lifetime: the destructor restores the mask and discards signals that were not read, so a late
/// stop signal does not change a job's exit code.
class SignalFd {
 public:
  explicit SignalFd(const std::vector<int>& signals);
  SignalFd(const SignalFd&) = delete;
  SignalFd& operator=(const SignalFd&) = delete;
  ~SignalFd();

  /// Poll it for POLLIN.
  int fd() const { return fd_.get(); }
  /// The next signal that has arrived, without waiting.
  std::optional<int> next();
  /// For a program whose exit code is decided: the destructor leaves the signals blocked, so a late
  /// signal does not replace the exit code.
  void leave_blocked() { leaves_blocked_ = true; }

 private:
  bool leaves_blocked_ = false;
  sigset_t previous_mask_{};
  UniqueFd fd_;
};

}  // namespace lockstep::inline internal
