#include "lockstep/os/process/helper_process.h"

#include <cerrno>
#include <csignal>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/files/pipe.h"
#include "lockstep/os/process/child_process.h"

namespace lockstep::inline internal {
namespace {

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
  const pid_t pid = ::fork();
  if (pid < 0) throw SystemError(concat("start the process ", name), errno, kProcessLimits);
  if (pid == 0) {
    control.write_end.reset();
    run_body(name, body, control.read_end.get());
  }
  pid_ = pid;
  control_ = std::move(control.write_end);
  try {
    process_ = open_process(pid);
  } catch (...) {
    kill_and_reap(pid);
    throw;
  }
}

HelperProcess::~HelperProcess() {
  if (!process_.valid()) return;
  if (!ended()) kill_process(process_);
  // Whoever reaps all children may have taken this one already: ECHILD is fine.
  siginfo_t info{};
  ::waitid(P_PIDFD, static_cast<id_t>(process_.get()), &info, WEXITED | WNOHANG);
}

bool HelperProcess::ended() const {
  return wait_for_end(process_, Deadline::after(std::chrono::milliseconds(0)));
}

bool HelperProcess::finish(Deadline deadline) {
  request_end();
  return wait_for_end(process_, deadline);
}

void close_files_from(int first, int kept) noexcept {
  if (first < kept) ::close_range(static_cast<unsigned>(first), static_cast<unsigned>(kept) - 1, 0);
  ::close_range(static_cast<unsigned>(kept) + 1, ~0U, 0);
}

}  // namespace lockstep::inline internal
