#include "lockstep/job/internal/worker_link.h"

#include <cerrno>
#include <charconv>
#include <cstring>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include "lockstep/base/error.h"
#include "lockstep/os/socket/passed_fd.h"
#include "lockstep/os/socket/poll_timeout.h"

namespace lockstep::inline internal {
namespace {

using Word = LinkMessage::Kind;

constexpr std::size_t kMostBytes = std::size_t{64} * 1024;

struct Frame {
  std::string bytes;
  iovec part{};
  PassedFd passed;
  msghdr header{};

  explicit Frame(std::string content) : bytes(std::move(content)) {
    part = {.iov_base = bytes.data(), .iov_len = bytes.size()};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
  }
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;
};

// The kind, the generation in digits, and each line after a zero byte.
std::string encode(const LinkMessage& message) {
  std::string text(1, static_cast<char>(message.kind));
  text += std::to_string(message.generation);
  for (const std::string& line : message.lines) text.append(1, '\0').append(line);
  return text;
}

std::optional<LinkMessage> decode(const std::string& text) {
  if (text.empty() || text[0] < static_cast<char>(Word::kKeepsState) ||
      text[0] > static_cast<char>(Word::kGivesUp)) {  // The largest number.
    return std::nullopt;
  }
  LinkMessage message{.kind = static_cast<Word>(text[0])};
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data() + 1, end, message.generation);
  if (error != std::errc()) return std::nullopt;
  for (const char* at = rest; at < end;) {
    if (*at++ != '\0') return std::nullopt;
    const char* const stop =
        static_cast<const char*>(std::memchr(at, '\0', static_cast<std::size_t>(end - at)));
    message.lines.emplace_back(at, stop == nullptr ? end : stop);
    at = stop == nullptr ? end : stop;
  }
  return message;
}

bool word_comes_by(int link, const Deadline& deadline) {
  pollfd entry{.fd = link, .events = POLLIN, .revents = 0};
  for (;;) {
    const int status = ::poll(&entry, 1, poll_timeout(deadline));
    if (status > 0) return true;
    if (status < 0 && errno != EINTR) throw SystemError("waiting for word of the launcher", errno);
    if (deadline.passed()) return false;
  }
}

}  // namespace

WorkerLink make_worker_link() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    throw SystemError("making a socket for a worker", errno);
  }
  return {.launcher = UniqueFd(ends[0]), .worker = UniqueFd(ends[1])};
}

bool is_worker_link(int fd) {
  int type = 0;
  int domain = 0;
  socklen_t bytes = sizeof type;
  return ::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes) == 0 && type == SOCK_SEQPACKET &&
         ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) == 0 && domain == AF_UNIX;
}

UniqueFd take_inherited(int fd) {
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  return UniqueFd(fd);
}

bool send_message(int link, const LinkMessage& message, int fd) noexcept try {
  Frame frame(encode(message));
  if (frame.bytes.size() > kMostBytes) return false;
  if (fd >= 0) frame.passed.send_with(frame.header, fd);
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(link, &frame.header, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent >= 0;
} catch (const std::exception&) {
  return false;  // Out of memory.
}

std::optional<LinkMessage> receive_message(int link, const Deadline& deadline) {
  while (word_comes_by(link, deadline)) {
    Frame frame(std::string(kMostBytes, '\0'));
    frame.passed.receive_with(frame.header);
    const ssize_t received = ::recvmsg(link, &frame.header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    // ECONNRESET, given once, says that the other side ended with messages unread; its own messages
    // follow.
    if (received < 0 && (errno == EINTR || errno == EAGAIN || errno == ECONNRESET)) continue;
    if (received == 0) {
      throw PeerLost("the other end of the link between this worker and its launcher has ended");
    }
    if (received < 0) throw SystemError("receiving word over a worker's link", errno);
    UniqueFd fd = PassedFd::take(frame.header);
    frame.bytes.resize(static_cast<std::size_t>(received));
    if (auto message = decode(frame.bytes)) {
      message->fd = std::move(fd);
      return message;
    }
  }
  return std::nullopt;
}

}  // namespace lockstep::inline internal
