#include "lockstep/os/helper_process.h"

#include <cerrno>
#include <csignal>

#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"
#include "lockstep/os/pipe.h"

namespace lockstep {
namespace {

// By number: glibc 2.36 declares these without extern "C", older ones not at all.
UniqueFd open_pidfd(pid_t pid) {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

void kill_process(const UniqueFd& process) {
  ::syscall(SYS_pidfd_send_signal, process.get(), SIGKILL, nullptr, 0);
}

[[noreturn]] void run_body(const char* name, const HelperProcess::Body& body, int control_fd) {
  // Out of reach of the terminal's signals; those sent to it directly stay blocked as inherited.
  ::setsid();
  ::signal(SIGPIPE, SIG_IGN);
  ::prctl(PR_SET_NAME, name);
  try {
    body(control_fd);
  } catch (...) {
    ::_exit(kExitFailure);
  }
  ::_exit(0);
}

}  // namespace

HelperProcess::HelperProcess(const char* name, const Body& body) {
  Pipe control = make_pipe();
  pid_ = ::fork();
  if (pid_ < 0) throw SystemError(concat("start the process ", name), errno);
  if (pid_ == 0) {
    control.write_end.reset();
    run_body(name, body, control.read_end.get());
  }
  control_ = std::move(control.write_end);
  process_ = open_pidfd(pid_);
  if (!process_.valid()) {
    const int error = errno;
    ::kill(pid_, SIGKILL);
    throw SystemError("pidfd_open", error, "Lockstep needs Linux 5.3 or later");
  }
}

HelperProcess::~HelperProcess() {
  if (!process_.valid()) return;
  kill_process(process_);
  ::waitpid(pid_, nullptr, WNOHANG);
}

bool HelperProcess::finish(Deadline deadline) {
  control_.reset();
  if (!process_.valid()) return true;
  pollfd ended{process_.get(), POLLIN, 0};
  int count = 0;
  do {
    count = ::poll(&ended, 1, static_cast<int>(deadline.remaining().count()));
  } while (count < 0 && errno == EINTR);
  if (count <= 0) kill_process(process_);
  // Whoever reaps all children may have taken this one already: ECHILD is fine.
  siginfo_t info{};
  ::waitid(P_PIDFD, static_cast<id_t>(process_.get()), &info, WEXITED | (count > 0 ? 0 : WNOHANG));
  process_.reset();
  return count > 0;
}

}  // namespace lockstep
