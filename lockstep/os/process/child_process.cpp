#include "lockstep/os/process/child_process.h"

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <utility>

#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/deadline.h"
#include "lockstep/os/files/pipe.h"
#include "lockstep/os/machine/affinity.h"
#include "lockstep/os/socket/poll_timeout.h"

namespace lockstep::inline internal {
namespace {

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  result.reserve(texts.size() + 1);
  for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

std::optional<CpuSet> set_of(const std::vector<int>& cpus) {
  if (cpus.empty()) return std::nullopt;
  return std::optional<CpuSet>(std::in_place, cpus);
}

// Between fork and exec: only async-signal-safe calls, no allocation. Returns errno.
int become_program(const SpawnOptions& options, char* const* arguments, char* const* environment,
                   const std::optional<CpuSet>& cpus, pid_t parent) {
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return errno;
  // The parent may have died before the line above; then nobody would ever kill this process.
  if (::getppid() != parent) ::_exit(kExitFailure);
  // Where only ancestors may look into a process (Yama), the parent's helpers may too; elsewhere an
  // error that changes nothing.
  ::prctl(PR_SET_PTRACER, parent);
  // A session, not only a group: a background group that reads from its terminal is stopped.
  ::setsid();
  if (cpus && !cpus->apply()) return errno;
  // dup2 to the same number would leave close-on-exec set; ours are never 0, 1 or 2.
  if (options.stdin_fd >= 0 && ::dup2(options.stdin_fd, STDIN_FILENO) < 0) return errno;
  if (options.stdout_fd >= 0 && ::dup2(options.stdout_fd, STDOUT_FILENO) < 0) return errno;
  if (options.stderr_fd >= 0 && ::dup2(options.stderr_fd, STDERR_FILENO) < 0) return errno;
  for (const int fd : options.inherited_fds) {
    if (::fcntl(fd, F_SETFD, 0) != 0) return errno;
  }
  ::signal(SIGPIPE, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execve(options.path.c_str(), arguments, environment);
  return errno;
}

// Started there and not moved there, which would take the kernel milliseconds.
pid_t fork_into(int control_group) {
  if (control_group >= 0) {
    clone_args arguments{};
    arguments.flags = CLONE_INTO_CGROUP;
    arguments.exit_signal = SIGCHLD;
    arguments.cgroup = static_cast<std::uint64_t>(control_group);
    const auto child = ::syscall(SYS_clone3, &arguments, sizeof arguments);
    if (child >= 0) return static_cast<pid_t>(child);
  }
  return ::fork();
}

// The child's errno; 0 when the pipe was closed by a successful exec.
int read_exec_errno(int fd, pid_t child, const SpawnOptions& options) {
  const Deadline deadline = Deadline::after(options.exec_timeout);
  for (;;) {
    pollfd ready{fd, POLLIN, 0};
    const int count = ::poll(&ready, 1, poll_timeout(deadline));
    if (count == 0) {
      ::kill(child, SIGKILL);
      throw TimeoutError(concat("execute ", options.path, ": not loaded within ",
                                options.exec_timeout.count(),
                                " ms; is it on a file server that does not answer?"));
    }
    if (count < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    int value = 0;
    const ssize_t size = ::read(fd, &value, sizeof(value));
    if (size < 0 && errno == EINTR) continue;
    return size == sizeof(value) ? value : 0;
  }
}

std::optional<ChildExit> reap(pid_t which) {
  int status = 0;
  pid_t pid = 0;
  errno = 0;
  do {
    pid = ::waitpid(which, &status, WNOHANG);
  } while (pid < 0 && errno == EINTR);
  if (pid <= 0) return std::nullopt;
  ChildExit ended{.pid = pid};
  if (WIFSIGNALED(status)) {
    ended.signal = WTERMSIG(status);
  } else {
    ended.exit_code = WEXITSTATUS(status);
  }
  return ended;
}

}  // namespace

pid_t spawn_process(const SpawnOptions& options) {
  const std::vector<char*> arguments = pointers(options.arguments);
  const std::vector<char*> environment = pointers(options.environment);
  const std::optional<CpuSet> cpus = set_of(options.cpus);
  Pipe report = make_pipe();
  const pid_t parent = ::getpid();
  const pid_t child = fork_into(options.control_group);
  if (child < 0) {
    throw SystemError(concat("start a process for ", options.path), errno, kProcessLimits);
  }
  if (child == 0) {
    const int error = become_program(options, arguments.data(), environment.data(), cpus, parent);
    [[maybe_unused]] const auto written = ::write(report.write_end.get(), &error, sizeof(error));
    ::_exit(kExitFailure);
  }
  report.write_end.reset();
  const int error = read_exec_errno(report.read_end.get(), child, options);
  if (error != 0) {
    kill_and_reap(child);
    throw ExecError(concat("execute ", options.path), error);
  }
  return child;
}

UniqueFd open_process(pid_t pid) {
  UniqueFd process = find_process(pid);
  if (process.valid()) return process;
  throw SystemError("pidfd_open", errno, "Lockstep needs Linux 5.3 or later");
}

// By numbers: glibc 2.36 declares these without extern "C", older ones not at all.
UniqueFd find_process(pid_t pid) noexcept {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

bool wait_for_end(const UniqueFd& process, const Deadline& deadline) noexcept {
  pollfd ended{process.get(), POLLIN, 0};
  for (;;) {
    if (::poll(&ended, 1, poll_timeout(deadline)) > 0) return true;
    if (deadline.passed()) return false;
  }
}

bool signal_process(const UniqueFd& process, int signal) noexcept {
  return ::syscall(SYS_pidfd_send_signal, process.get(), signal, nullptr, 0) == 0;
}

bool kill_process(const UniqueFd& process) noexcept {
  return signal_process(process, SIGKILL);
}

ChildExit reap_child(pid_t pid) {
  if (const auto ended = reap(pid)) return *ended;
  throw SystemError(concat("wait for the end of process ", pid), errno == 0 ? EAGAIN : errno,
                    "no other part of the program may reap it, or ignore SIGCHLD");
}

void kill_and_reap(pid_t pid) noexcept {
  ::kill(pid, SIGKILL);
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

std::optional<ChildExit> reap_any_child() {
  return reap(-1);
}

std::optional<ChildStop> next_stopped_child() {
  siginfo_t info{};
  int result = 0;
  do {
    result = ::waitid(P_ALL, 0, &info, WSTOPPED | WNOHANG);
  } while (result < 0 && errno == EINTR);
  if (result < 0 || info.si_pid == 0) return std::nullopt;
  return ChildStop{.pid = info.si_pid, .signal = info.si_status};
}

void adopt_orphans() {
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) throw SystemError("become a subreaper", errno);
}

bool signal_group(pid_t group, int signal) noexcept {
  return ::kill(-group, signal) == 0 || errno != ESRCH;
}

}  // namespace lockstep::inline internal
