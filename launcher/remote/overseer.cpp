#include "launcher/remote/overseer.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <memory>

#include <poll.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/process/signals.h"
#include "lockstep/os/socket/poll_timeout.h"

namespace lockstep::inline internal {
namespace {

using std::chrono::milliseconds;

// From the machines' end to the end of what leads there.
constexpr milliseconds kConnectionEnds{5'000};
// From the first machine's end to that of the others, which learn of it from each other, unless it
// was the one that would have told them.
constexpr milliseconds kOthersEnd{10'000};

// One of this process's streams: what its reader has not taken yet. While there is any, no more is
// read from the machines, whose programs wait as they would at a pipe.
class Shown {
 public:
  explicit Shown(int fd) : fd_(fd) {}

  void add(const std::string& lines) { text_ += lines; }
  bool takes_more() const { return text_.empty(); }
  pollfd await() const { return {text_.empty() ? -1 : fd_, POLLOUT, 0}; }
  void handle(const pollfd& ready) {
    if (ready.revents == 0) return;
    // A pipe reported as writable takes PIPE_BUF bytes without blocking.
    const ssize_t size = ::write(fd_, text_.data(), std::min<std::size_t>(text_.size(), PIPE_BUF));
    if (size > 0) {
      text_.erase(0, static_cast<std::size_t>(size));
    } else if (size < 0 && errno != EAGAIN && errno != EINTR) {
      text_.clear();  // Whoever read it is gone; the job is not.
    }
  }

 private:
  const int fd_;
  std::string text_;
};

class Overseer {
 public:
  explicit Overseer(const OverseeOptions& options)
      : options_(options), signals_({SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGCHLD}) {
    result_.collected.resize(options.commands.size());
    for (std::size_t i = 0; i < options.commands.size(); ++i) {
      const HostedCommand& command = options.commands[i];
      const auto show = [this, i](const std::string& lines) {
        if (options_.collects) {
          result_.collected[i] += lines;
        } else {
          out_.add(lines);
        }
      };
      sessions_.push_back(
          std::make_unique<HostSession>(command.host, options.ssh, command.request, show,
                                        [this](const std::string& lines) { err_.add(lines); }));
    }
    concluded_.resize(sessions_.size());
    if (options.time_limit) stop_at_ = Deadline::after(*options.time_limit);
  }

  Overseen run() {
    while (!all_ended()) {
      wait();
      take_signals();
      note_ends();
      keep_time();
    }
    show_the_rest();
    return std::move(result_);
  }

 private:
  // Whoever does not read what is left may still stop it by a signal.
  void show_the_rest() {
    constexpr milliseconds kStoppedPatience{1'000};
    const auto is_left = [&] { return !out_.takes_more() || !err_.takes_more(); };
    while (is_left() && !result_.stop_signal) {
      wait();
      take_signals();
    }
    const Deadline deadline = Deadline::after(kStoppedPatience);
    next_beat_ = deadline;
    while (is_left() && !deadline.passed()) wait();
  }

  bool all_ended() const { return result_.ends.size() == sessions_.size(); }

  void wait() {
    std::vector<pollfd> ready = {{signals_.fd(), POLLIN, 0}, out_.await(), err_.await()};
    const std::size_t first = ready.size();
    Deadline wake = next_beat_;
    const auto no_later = [&](const std::optional<Deadline>& deadline) {
      if (deadline && deadline->instant() < wake.instant()) wake = *deadline;
    };
    for (const auto& session : sessions_) {
      session->await(ready, out_.takes_more() || options_.collects, err_.takes_more());
      if (!session->end()) no_later(session->deadline());
    }
    no_later(stop_at_);
    no_later(give_up_at_);
    if (::poll(ready.data(), ready.size(), poll_timeout(wake)) < 0)
      return;  // EINTR: as at the deadline
    out_.handle(ready[1]);
    err_.handle(ready[2]);
    for (std::size_t i = 0; i < sessions_.size(); ++i) {
      sessions_[i]->handle(ready, first + i * HostSession::kDescriptors);
    }
  }

  void take_signals() {
    while (const auto signal = signals_.next()) {
      if (*signal == SIGCHLD) continue;  // Each session looks after its own.
      if (!result_.stop_signal) result_.stop_signal = *signal;
      stop(*signal);
    }
  }

  void note_ends() {
    for (std::size_t i = 0; i < sessions_.size(); ++i) {
      if (concluded_[i] || !sessions_[i]->end()) continue;
      concluded_[i] = true;
      const HostEnd& end = *sessions_[i]->end();
      result_.ends.push_back({i, end});
      note_end(sessions_[i]->host(), end);
    }
  }

  void note_end(const RemoteHost& host, const HostEnd& end) {
    const bool ended = end.kind == HostEnd::Kind::kEnded;
    if (!ended && end.kind != HostEnd::Kind::kStopped) {
      --there_;
      if (!result_.stop_signal) err_.add(concat("lockstep: ", host.name, ": ", end.reason, "\n"));
    }
    if (options_.least_hosts == 0 || stopping_) return;
    if (there_ < options_.least_hosts) {
      stop(SIGTERM);
    } else if (ended && (options_.least_hosts == sessions_.size() || !some_runs())) {
      // The job has ended, and the others are about to see it; some may not have been reached yet.
      if (!stop_at_) stop_at_ = Deadline::after(some_runs() ? kOthersEnd : milliseconds(0));
    }
  }

  bool some_runs() const {
    return std::ranges::any_of(
        sessions_, [](const auto& session) { return session->begun() && !session->end(); });
  }

  void keep_time() {
    if (next_beat_.passed()) {
      for (const auto& session : sessions_) session->send(kHeartbeat);
      next_beat_ = Deadline::after(options_.heartbeat_interval);
    }
    if (stop_at_ && stop_at_->passed()) {
      stop_at_.reset();
      if (!stopping_) stop(SIGTERM);
    }
    if (give_up_at_ && give_up_at_->passed()) {
      give_up_at_.reset();
      for (const auto& session : sessions_) session->give_up();
    }
  }

  void stop(int signal) {
    for (const auto& session : sessions_) {
      if (session->begun()) {
        session->send(signal_line(signal));
      } else {
        session->give_up();
      }
    }
    if (!stopping_) give_up_at_ = Deadline::after(options_.patience + kConnectionEnds);
    stopping_ = true;
  }

  const OverseeOptions& options_;
  SignalFd signals_;
  Shown out_{STDOUT_FILENO};
  Shown err_{STDERR_FILENO};
  std::vector<std::unique_ptr<HostSession>> sessions_;
  std::vector<bool> concluded_;
  std::size_t there_ = options_.commands.size();
  Overseen result_;
  bool stopping_ = false;
  Deadline next_beat_ = Deadline::after(options_.heartbeat_interval);
  std::optional<Deadline> stop_at_;
  std::optional<Deadline> give_up_at_;
};

}  // namespace

Overseen oversee(const OverseeOptions& options) {
  ignore_broken_pipes();
  return Overseer(options).run();
}

}  // namespace lockstep::inline internal
