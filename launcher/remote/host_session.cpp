#include "launcher/remote/host_session.h"

#include <cerrno>
#include <csignal>
#include <sstream>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/os/files/pipe.h"
#include "lockstep/os/process/child_process.h"
#include "lockstep/os/process/find_program.h"

namespace lockstep::inline internal {
namespace {

constexpr std::chrono::milliseconds kDrain{2'000};
// So much of what ssh says before it fails is shown.
constexpr std::size_t kMostFirstWords = 50;

// For any shell.
std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

// Without the secret, which anybody could be sent who is given LOCKSTEP_ by ssh's SendEnv.
std::vector<std::string> environment_of_ssh() {
  std::vector<std::string> lines = env::everything();
  std::erase_if(lines, [](const std::string& line) {
    return line.starts_with(std::string(env::kJobSecret.name) + "=");
  });
  return lines;
}

void set_nonblocking(const UniqueFd& fd) {
  if (::fcntl(fd.get(), F_SETFL, O_NONBLOCK) != 0)
    throw SystemError("make a pipe nonblocking", errno);
}

}  // namespace

HostSession::HostSession(RemoteHost host, const SshOptions& ssh, HostedRequest request, Sink out,
                         Sink err)
    : host_(std::move(host)),
      request_(std::move(request)),
      lockstep_(ssh.lockstep),
      show_out_(std::move(out)),
      show_err_(std::move(err)),
      outgoing_(concat(encode(request_), "\n")) {
  std::vector<std::string> words = ssh.command;
  words.push_back(host_.name);
  words.push_back(concat("exec ", quoted(lockstep_), " attend"));
  Pipe in = make_pipe();
  Pipe from_out = make_pipe();
  Pipe from_err = make_pipe();
  pid_ = spawn_process({.path = find_program(words.front()),
                        .arguments = words,
                        .environment = environment_of_ssh(),
                        .stdin_fd = in.read_end.get(),
                        .stdout_fd = from_out.write_end.get(),
                        .stderr_fd = from_err.write_end.get()});
  in_ = std::move(in.write_end);
  out_ = std::move(from_out.read_end);
  err_ = std::move(from_err.read_end);
  process_ = open_process(pid_);
  for (const UniqueFd* const fd : {&in_, &out_, &err_}) set_nonblocking(*fd);
}

HostSession::~HostSession() {
  if (pid_ != 0 && !ssh_status_) signal_group(pid_, SIGKILL);
}

void HostSession::send(const std::string& line) {
  // A machine that takes nothing is not heard of either.
  constexpr std::size_t kMostOutgoingBytes = 4 * 1024;
  if (!begun_ || status_ || outgoing_.size() > kMostOutgoingBytes) return;
  outgoing_ += line + "\n";
}

void HostSession::give_up() {
  if (end_) return;
  given_up_ = true;
  if (!ssh_status_) signal_group(pid_, SIGKILL);
}

void HostSession::await(std::vector<pollfd>& descriptors, bool takes_out, bool takes_err) const {
  const auto add = [&](bool wanted, const UniqueFd& fd, short events) {
    descriptors.push_back({wanted ? fd.get() : -1, events, 0});
  };
  const bool open = !end_;
  add(open && !outgoing_.empty(), in_, POLLOUT);
  add(open && takes_out, out_, POLLIN);
  add(open && takes_err, err_, POLLIN);
  add(open && !ssh_status_, process_, POLLIN);
}

void HostSession::handle(const std::vector<pollfd>& descriptors, std::size_t first) {
  if (end_) return;
  if (descriptors[first].revents != 0) write();
  if (descriptors[first + 1].revents != 0) read(out_, out_lines_, false);
  if (descriptors[first + 2].revents != 0) read(err_, err_lines_, true);
  if (descriptors[first + 3].revents != 0) note_end();
  const bool all_read = !out_.valid() && !err_.valid();
  const auto is_held_up = [&](const UniqueFd& fd, std::size_t place) {
    return fd.valid() && descriptors[first + place].fd < 0;
  };
  // Nobody takes what would be shown: there may be more of it.
  if (drain_until_ && !given_up_ && (is_held_up(out_, 1) || is_held_up(err_, 2))) {
    drain_until_ = Deadline::after(kDrain);
  }
  if (all_read ? ssh_status_.has_value() : drain_until_ && drain_until_->passed()) conclude();
}

void HostSession::write() {
  const ssize_t size = ::write(in_.get(), outgoing_.data(), outgoing_.size());
  if (size > 0) {
    outgoing_.erase(0, static_cast<std::size_t>(size));
  } else if (errno != EAGAIN && errno != EINTR) {
    outgoing_.clear();  // ssh has ended, or is about to.
    in_.reset();
  }
}

void HostSession::read(UniqueFd& fd, LinePrefixer& lines, bool is_err) {
  char bytes[64 * 1024];
  const ssize_t size = ::read(fd.get(), bytes, sizeof(bytes));
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
  const bool ended = size <= 0;
  if (ended) fd.reset();
  const std::string text =
      ended ? lines.flush() : lines.feed({bytes, static_cast<std::size_t>(size)});
  if (text.empty()) return;
  if (is_err) {
    show_errors(text);
  } else {
    show_out_(text);
  }
}

void HostSession::show_errors(const std::string& lines) {
  std::istringstream each(lines);
  for (std::string line; std::getline(each, line);) take_error_line(line);
}

void HostSession::take_error_line(const std::string& line) {
  const MarkedLine marked = read_marks(line, request_.marker);
  const bool is_mark = marked.begun || marked.ended;
  if (!is_mark || !marked.text.empty()) {
    if (begun_) {
      show_err_(marked_line(host_, marked.text) + "\n");
    } else if (first_words_.size() < kMostFirstWords && !marked.text.empty()) {
      // ssh ends its lines as terminals want it.
      first_words_.push_back(marked.text.substr(0, marked.text.find_last_not_of("\r") + 1));
    }
  }
  if (marked.begun) {
    begun_ = true;
    for (const std::string& word : first_words_) show_err_(concat(host_.name, ": ", word, "\n"));
  }
  if (marked.ended) {
    status_ = marked.ended;
    drain_until_ = Deadline::after(kDrain);
    in_.reset();
    outgoing_.clear();
  }
}

void HostSession::note_end() {
  const ChildExit ended = reap_child(pid_);
  ssh_status_ = ended.signal == 0 ? ended.exit_code : 128 + ended.signal;
  if (!drain_until_) drain_until_ = Deadline::after(kDrain);
}

void HostSession::conclude() {
  if (status_) {
    end_ = HostEnd{.kind = HostEnd::Kind::kEnded, .status = *status_};
  } else if (given_up_) {
    end_ = HostEnd{.kind = HostEnd::Kind::kStopped};
  } else if (begun_) {
    end_ = HostEnd{.kind = HostEnd::Kind::kLost, .reason = "the connection was lost"};
  } else {
    const std::string last = first_words_.empty() ? "" : first_words_.back();
    if (!first_words_.empty()) first_words_.pop_back();
    for (const std::string& word : first_words_) show_err_(concat(host_.name, ": ", word, "\n"));
    end_ = why_not_begun(ssh_status_.value_or(1), last, lockstep_);
  }
  if (!ssh_status_) {
    signal_group(pid_, SIGKILL);
    // It is not awaited any more, and has nothing left to say.
  }
}

HostEnd why_not_begun(int ssh_status, const std::string& words, const std::string& lockstep) {
  constexpr int kSshFailed = 255;
  constexpr int kNotFound = 127;
  constexpr int kNotExecutable = 126;
  HostEnd end{.kind = HostEnd::Kind::kNotBegun, .status = kExitFailure};
  if (ssh_status == kSshFailed) {
    end.reason = concat("cannot be reached: ", words.empty() ? "ssh does not say why" : words);
  } else if (ssh_status == kNotFound || ssh_status == kNotExecutable) {
    end.reason = concat("cannot execute ", lockstep, " there (", words,
                        "); install Lockstep there, at the same path or at one named by "
                        "--remote-lockstep=PATH");
  } else if (words.empty()) {
    end.reason = concat("cannot start lockstep there: exit code ", ssh_status);
  } else {
    constexpr std::string_view kOwn = "lockstep: ";
    end.reason = concat("cannot start lockstep there: ",
                        words.starts_with(kOwn) ? words.substr(kOwn.size()) : words);
  }
  return end;
}

int job_status(const std::vector<HostEnd>& ends, std::optional<int> stop_signal) {
  const HostEnd* first = nullptr;
  for (const HostEnd& end : ends) {
    // A launcher ends so only when all of the job have ended well.
    if (end.kind == HostEnd::Kind::kEnded && end.status == 0) return 0;
    if (first == nullptr && end.kind != HostEnd::Kind::kStopped) first = &end;
  }
  if (stop_signal) return 128 + *stop_signal;
  if (first == nullptr) return kExitFailure;
  return first->kind == HostEnd::Kind::kEnded ? first->status : kExitFailure;
}

std::string marked_line(const RemoteHost& host, const std::string& line) {
  return line.starts_with("lockstep: ") ? concat(host.name, ": ", line) : line;
}

}  // namespace lockstep::inline internal
