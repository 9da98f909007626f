#include "lockstep/os/process/fork_server.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <utility>

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/os/process/fork_request.h"
#include "lockstep/os/socket/passed_fd.h"
#include "lockstep/os/socket/poll_timeout.h"

namespace lockstep::inline internal {
namespace {

// The launcher waits meanwhile.
constexpr std::chrono::milliseconds kTimeToFork{500};
constexpr std::chrono::milliseconds kTimeToEnd{500};
constexpr std::string_view kNoteName = kForkServerNote;

bool read_at(int fd, std::uint64_t offset, void* bytes, std::size_t count) {
  return ::pread(fd, bytes, count, static_cast<off_t>(offset)) == static_cast<ssize_t>(count);
}

// Notes are padded to four bytes.
std::size_t padded(std::size_t bytes) {
  return (bytes + 3) / 4 * 4;
}

bool has_note(int fd, const ElfW(Phdr) & segment) {
  constexpr std::size_t kMostBytes = std::size_t{64} * 1024;
  std::string notes(std::min<std::size_t>(segment.p_filesz, kMostBytes), '\0');
  if (!read_at(fd, segment.p_offset, notes.data(), notes.size())) return false;
  for (std::size_t at = 0; at + sizeof(ElfW(Nhdr)) <= notes.size();) {
    ElfW(Nhdr) note;
    std::memcpy(&note, notes.data() + at, sizeof note);
    at += sizeof note;
    // With the zero at its end.
    if (note.n_namesz == kNoteName.size() + 1 &&
        notes.compare(at, kNoteName.size(), kNoteName) == 0) {
      return true;
    }
    at += padded(note.n_namesz) + padded(note.n_descsz);
  }
  return false;
}

// What the other end has sent by the deadline, or before `news` is readable.
struct Received {
  std::optional<std::int32_t> number;
  bool has_ended = false;
};

Received receive_number(int socket, const Deadline& deadline, int news = -1) {
  std::array<pollfd, 2> entries{{{socket, POLLIN, 0}, {news, POLLIN, 0}}};
  for (;;) {
    const int count = ::poll(entries.data(), entries.size(), poll_timeout(deadline));
    if (count > 0 && entries[0].revents != 0) break;
    if ((count < 0 && errno != EINTR) || count > 0 || deadline.passed()) return {};
  }
  std::int32_t number = 0;
  if (::recv(socket, &number, sizeof number, MSG_DONTWAIT) != sizeof number) {
    return {.number = std::nullopt, .has_ended = true};
  }
  return {.number = number};
}

struct Ends {
  UniqueFd own;
  UniqueFd other;
};

std::optional<Ends> make_ends() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return std::nullopt;
  return Ends{.own = UniqueFd(ends[0]), .other = UniqueFd(ends[1])};
}

// What an executed program has, too: files that the launcher itself was started with.
std::vector<int> files_at_exec(const SpawnOptions& options) {
  std::vector<int> files = options.inherited_fds;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const int fd = parse_number<int>(entry.path().filename().string()).value_or(-1);
    const int flags = fd > STDERR_FILENO ? ::fcntl(fd, F_GETFD) : -1;
    if (flags >= 0 && (flags & FD_CLOEXEC) == 0) files.push_back(fd);
  }
  return files;
}

// `reply` goes first. False with errno.
bool send_request(int socket, const SpawnOptions& options, int reply) {
  const auto stream = [](int fd, int own) { return fd >= 0 ? fd : own; };
  ForkRequest request{.cpus = options.cpus, .environment = options.environment};
  PassedFds files;
  files.add(reply);
  files.add(stream(options.stdin_fd, STDIN_FILENO));
  files.add(stream(options.stdout_fd, STDOUT_FILENO));
  files.add(stream(options.stderr_fd, STDERR_FILENO));
  request.files = {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO};
  const std::vector<int> inherited = files_at_exec(options);
  if (inherited.size() > PassedFds::kMost - 4) {
    errno = EMSGSIZE;
    return false;
  }
  for (const int fd : inherited) {
    files.add(fd);
    request.files.push_back(fd);
  }
  std::string bytes = encoded(request);
  iovec part{.iov_base = bytes.data(), .iov_len = bytes.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  files.send_with(header);
  return ::sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
}

}  // namespace

bool ForkServer::is_in(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  ElfW(Ehdr) header{};
  if (!file.valid() || !read_at(file.get(), 0, &header, sizeof header)) return false;
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return false;
  if (header.e_phentsize != sizeof(ElfW(Phdr))) return false;
  for (std::size_t i = 0; i < header.e_phnum; ++i) {
    ElfW(Phdr) segment{};
    if (!read_at(file.get(), header.e_phoff + i * sizeof segment, &segment, sizeof segment)) {
      return false;
    }
    if (segment.p_type == PT_NOTE && has_note(file.get(), segment)) return true;
  }
  return false;
}

ForkServer::ForkServer(SpawnOptions& first,
                       std::function<bool(std::string_view line)> is_of_one_worker,
                       std::chrono::milliseconds time_to_load)
    : is_of_one_worker_(std::move(is_of_one_worker)), time_to_load_(time_to_load) {
  auto ends = make_ends();
  if (!ends) throw SystemError("make a socket for a fork server", errno);
  socket_ = std::move(ends->own);
  worker_end_ = std::move(ends->other);
  first.inherited_fds.push_back(worker_end_.get());
  first.environment.push_back(concat(kForkServerFd.name, "=", worker_end_.get()));
  first_ = first;
}

ForkServer::~ForkServer() {
  end();
}

void ForkServer::end() noexcept {
  socket_.reset();
  worker_end_.reset();
  if (!process_.valid()) return;
  kill_process(process_);
  wait_for_end(process_, Deadline::after(kTimeToEnd));
  // Another part of the launcher may have reaped it already.
  siginfo_t info{};
  ::waitid(P_PIDFD, static_cast<id_t>(process_.get()), &info, WEXITED | WNOHANG);
  process_.reset();
}

bool ForkServer::can_start(const SpawnOptions& options) const {
  const auto shared_lines = [&](const SpawnOptions& of) {
    std::vector<std::string_view> lines;
    for (const std::string& line : of.environment) {
      const bool is_own = line.starts_with(concat(kForkServerFd.name, "="));
      if (!is_own && !is_of_one_worker_(line)) lines.push_back(line);
    }
    std::ranges::sort(lines);
    return lines;
  };
  // All processors, or some: libraries have counted them.
  return options.path == first_.path && options.arguments == first_.arguments &&
         options.cpus.size() == first_.cpus.size() && shared_lines(options) == shared_lines(first_);
}

bool ForkServer::wait_until_ready(int news) {
  if (process_.valid()) return true;
  // Once for all workers: those that follow are executed at once.
  const Deadline deadline = Deadline::after(std::exchange(time_to_load_, {}));
  const Received pid = receive_number(socket_.get(), deadline, news);
  if (pid.number) process_ = find_process(*pid.number);
  const bool is_gone = pid.has_ended || (pid.number && !process_.valid());
  if (is_gone) end();  // The first worker leaves none, or the server has ended.
  return process_.valid();
}

std::optional<pid_t> ForkServer::start(const SpawnOptions& options, int news) {
  if (!is_valid() || !can_start(options) || !wait_until_ready(news)) return std::nullopt;
  auto reply = make_ends();
  if (!reply) return std::nullopt;
  if (!send_request(socket_.get(), options, reply->other.get())) {
    // Otherwise the request is too large, which says nothing of the server.
    if (errno == EPIPE || errno == ECONNRESET) end();
    return std::nullopt;
  }
  reply->other.reset();
  const auto pid = receive_number(reply->own.get(), Deadline::after(kTimeToFork)).number;
  if (!pid) end();
  if (!pid || *pid <= 0) return std::nullopt;
  // From here on it runs. Without this word it ends.
  const std::int32_t word = 0;
  if (::send(reply->own.get(), &word, sizeof word, MSG_NOSIGNAL) < 0) return std::nullopt;
  return *pid;
}

}  // namespace lockstep::inline internal
