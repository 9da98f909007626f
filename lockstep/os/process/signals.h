#pragma once

#include <optional>
#include <string>
#include <vector>

#include <signal.h>

#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// "SIGTERM" for 15; "signal 40" for one that has no name.
std::string signal_name(int signal);

/// 15 for "SIGTERM" or "TERM"; nothing for a name that no signal has.
std::optional<int> signal_number(const std::string& name);

/// From now on a connection that the other side has closed is an error of the call that writes to
/// it, instead of SIGPIPE, which ends the process. Where the process does something else on SIGPIPE
/// that stays.
void ignore_broken_pipes();

/// What a process does with a signal whose default is to end it.
enum class SignalFate {
  kEnds,
  /// It comes later: to a signalfd or sigwait, or it ends the process once that blocks it no more,
  /// as shells do while they start programs.
  kBlocked,
  /// It is handled or ignored, or the process cannot be looked at.
  kSpares,
};
SignalFate fate_of(pid_t process, int signal);

/// Makes signals readable from a descriptor instead of interrupting. Those that the process was
/// told to ignore (by nohup, for one) stay ignored.
/// Threads: make it before any other thread starts; the mask is per thread.
/// Lifetime: the destructor restores the mask. Signals that nobody has read by then are dropped: a
/// job's exit status stays what it was when it was told to end a moment too late.
class SignalFd {
 public:
  explicit SignalFd(const std::vector<int>& signals);
  SignalFd(const SignalFd&) = delete;
  SignalFd& operator=(const SignalFd&) = delete;
  ~SignalFd();

  /// To poll for POLLIN.
  int fd() const { return fd_.get(); }
  /// The next signal that has arrived, without waiting.
  std::optional<int> next();
  /// For a program whose exit code is decided: the destructor leaves the signals blocked, so that
  /// one that comes before the program's end does not replace the code.
  void leave_blocked() { leaves_blocked_ = true; }

 private:
  bool leaves_blocked_ = false;
  sigset_t previous_mask_{};
  UniqueFd fd_;
};

}  // namespace lockstep::inline internal
