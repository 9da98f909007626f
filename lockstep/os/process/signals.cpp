#include "lockstep/os/process/signals.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>

#include <sys/signalfd.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name ? concat("SIG", name) : concat("signal ", signal);
}

void ignore_broken_pipes() {
  struct sigaction action {};
  if (::sigaction(SIGPIPE, nullptr, &action) != 0 || action.sa_handler != SIG_DFL) return;
  ::signal(SIGPIPE, SIG_IGN);
}

std::optional<int> signal_number(const std::string& name) {
  const std::string wanted = name.starts_with("SIG") ? name.substr(3) : name;
  for (int signal = 1; signal < NSIG; ++signal) {
    const char* candidate = ::sigabbrev_np(signal);
    if (candidate && wanted == candidate) return signal;
  }
  return std::nullopt;
}

SignalFate fate_of(pid_t process, int signal) {
  constexpr std::array kIgnoredByDefault = {SIGCHLD, SIGCONT, SIGURG, SIGWINCH};
  if (std::ranges::count(kIgnoredByDefault, signal) > 0) return SignalFate::kSpares;
  std::ifstream file(concat("/proc/", process, "/status"));
  bool is_blocked = false;
  bool is_spared = false;
  int lines = 0;
  for (std::string line; std::getline(file, line);) {
    // "SigCgt:	0000000180014a02", of the first thread
    const auto is_one = [&](const char* name) { return line.starts_with(name); };
    if (!is_one("SigBlk:") && !is_one("SigIgn:") && !is_one("SigCgt:")) continue;
    const std::uint64_t mask = std::stoull(line.substr(std::strlen("SigBlk:")), nullptr, 16);
    (is_one("SigBlk:") ? is_blocked : is_spared) |= (mask >> (signal - 1) & 1) != 0;
    ++lines;
  }
  if (lines < 3 || is_spared) return SignalFate::kSpares;
  return is_blocked ? SignalFate::kBlocked : SignalFate::kEnds;
}

SignalFd::SignalFd(const std::vector<int>& signals) {
  sigset_t mask;
  sigemptyset(&mask);
  for (const int signal : signals) {
    struct sigaction current {};
    ::sigaction(signal, nullptr, &current);
    // A blocked signal reaches a signalfd even when it is ignored, so it must stay unblocked.
    // SIGCHLD is different: inherited as ignored, the system would reap children behind our back.
    if (signal == SIGCHLD) {
      ::signal(SIGCHLD, SIG_DFL);
    } else if (current.sa_handler == SIG_IGN) {
      continue;
    }
    sigaddset(&mask, signal);
  }
  fd_ = UniqueFd(::signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_.valid()) throw SystemError("signalfd", errno);
  ::sigprocmask(SIG_BLOCK, &mask, &previous_mask_);
}

SignalFd::~SignalFd() {
  while (next()) {  // It came too late to be told; once unblocked it would end the process.
  }
  if (!leaves_blocked_) ::sigprocmask(SIG_SETMASK, &previous_mask_, nullptr);
}

std::optional<int> SignalFd::next() {
  signalfd_siginfo info{};
  const ssize_t size = ::read(fd_.get(), &info, sizeof(info));
  if (size != sizeof(info)) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

}  // namespace lockstep::inline internal
