#include "launcher/remote/attend.h"

#include <cerrno>
#include <csignal>
#include <map>
#include <optional>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "launcher/job/console.h"
#include "launcher/remote/hosted_request.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/os/machine/machine.h"
#include "lockstep/os/process/child_process.h"
#include "lockstep/os/process/signals.h"
#include "lockstep/os/socket/poll_timeout.h"

namespace lockstep::inline internal {
namespace {

// Of arguments and environment together the kernel takes no more.
constexpr std::size_t kLongestRequestBytes = 6 * 1024 * 1024;

// What asks for something, line by line. Not blocking.
class Orders {
 public:
  // Takes stdin's place: what is asked for must not read what is for this process.
  Orders() : fd_(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1)) {
    const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    const bool good = fd_.valid() && nothing.valid() &&
                      ::dup2(nothing.get(), STDIN_FILENO) == STDIN_FILENO &&
                      ::fcntl(fd_.get(), F_SETFL, O_NONBLOCK) == 0;
    if (!good) throw SystemError("read stdin", errno);
  }

  int fd() const { return fd_.get(); }
  bool ended() const { return ended_; }
  // Takes what has come.
  void take() {
    char bytes[16 * 1024];
    const ssize_t size = ::read(fd_.get(), bytes, sizeof(bytes));
    if (size > 0) {
      text_.append(bytes, static_cast<std::size_t>(size));
    } else if (size == 0 || (errno != EINTR && errno != EAGAIN)) {
      ended_ = true;
    }
    if (text_.size() > kLongestRequestBytes) ended_ = true;
  }
  std::optional<std::string> next_line() {
    const auto end = text_.find('\n');
    if (end == std::string::npos) return std::nullopt;
    std::string line = text_.substr(0, end);
    text_.erase(0, end + 1);
    return line;
  }

 private:
  UniqueFd fd_;
  std::string text_;
  bool ended_ = false;
};

HostedRequest read_request(Orders& orders) {
  const Deadline deadline = Deadline::after(kLongestSilence);
  std::optional<std::string> line;
  while (!(line = orders.next_line()) && !orders.ended() && !deadline.passed()) {
    pollfd ready{orders.fd(), POLLIN, 0};
    if (::poll(&ready, 1, poll_timeout(deadline)) > 0) orders.take();
  }
  const auto request = decode_hosted_request(line.value_or(""));
  if (request) return *request;
  throw UsageError(
      "attend: no request on stdin; lockstep run --hosts=... starts it over ssh, with the same "
      "version "
      "of Lockstep on both machines");
}

std::vector<std::string> environment_with(const std::vector<std::string>& added) {
  std::map<std::string, std::string> lines;
  for (const auto& from : {env::everything(), added}) {
    for (const std::string& line : from) lines[line.substr(0, line.find('='))] = line;
  }
  std::vector<std::string> result;
  for (const auto& [name, line] : lines) result.push_back(line);
  return result;
}

void enter(const std::string& directory) {
  if (::chdir(directory.c_str()) == 0) return;
  throw SystemError(concat("go to ", directory, " on ", host_name()), errno,
                    "the job runs in the same directory on all machines");
}

class Attendant {
 public:
  Attendant(Orders& orders, const HostedRequest& request)
      : orders_(orders), request_(request), signals_({SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGQUIT}) {}

  int run() {
    std::vector<std::string> words = request_.arguments;
    words.insert(words.begin(), "lockstep");
    say_text(concat(begun_mark(request_.marker), "\n"));
    child_ = spawn_process({.path = "/proc/self/exe",
                            .arguments = words,
                            .environment = environment_with(request_.environment)});
    std::optional<int> status;
    while (!(status = wait())) {
    }
    say_text(concat(ended_mark(request_.marker, *status), "\n"));
    return *status;
  }

 private:
  std::optional<int> wait() {
    pollfd ready[] = {{signals_.fd(), POLLIN, 0}, {is_lost_ ? -1 : orders_.fd(), POLLIN, 0}};
    Deadline wake = is_lost_ ? Deadline::after(kLongestSilence) : silence_;
    if (kill_at_ && kill_at_->instant() < wake.instant()) wake = *kill_at_;
    ::poll(ready, 2, poll_timeout(wake));
    while (const auto signal = signals_.next()) {
      if (*signal != SIGCHLD) pass_on(*signal);
      while (const auto ended = reap_any_child()) {
        if (ended->pid != child_) continue;
        return ended->signal == 0 ? ended->exit_code : 128 + ended->signal;
      }
    }
    if (!is_lost_) listen(ready[1].revents != 0);
    if (kill_at_ && kill_at_->passed()) {
      ::kill(child_, SIGKILL);
      kill_at_.reset();
    }
    return std::nullopt;
  }

  void listen(bool has_come) {
    if (has_come) orders_.take();
    while (const auto line = orders_.next_line()) {
      silence_ = Deadline::after(request_.silence);
      if (const auto signal = signal_in(*line)) pass_on(*signal);
    }
    if (!orders_.ended() && !silence_.passed()) return;
    is_lost_ = true;
    pass_on(SIGTERM);
  }

  void pass_on(int signal) {
    ::kill(child_, signal);
    if (!kill_at_) kill_at_ = Deadline::after(request_.patience);
  }

  Orders& orders_;
  const HostedRequest& request_;
  SignalFd signals_;
  pid_t child_ = 0;
  bool is_lost_ = false;
  Deadline silence_ = Deadline::after(request_.silence);
  std::optional<Deadline> kill_at_;
};

}  // namespace

int attend() {
  ignore_broken_pipes();
  Orders orders;
  const HostedRequest request = read_request(orders);
  enter(request.directory);
  return Attendant(orders, request).run();
}

}  // namespace lockstep::inline internal
