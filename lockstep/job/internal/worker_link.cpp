#include "lockstep/job/internal/worker_link.h"

#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include "lockstep/base/error.h"
#include "lockstep/os/socket/passed_fd.h"
#include "lockstep/os/socket/poll_timeout.h"

namespace lockstep::inline internal {
namespace {

constexpr std::size_t kMostBytes = std::size_t{64} * 1024;

struct Buffer {
  std::string bytes;
  iovec part{};
  PassedFd passed;
  msghdr header{};

  explicit Buffer(std::string content) : bytes(std::move(content)) {
    part = {.iov_base = bytes.data(), .iov_len = bytes.size()};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
};

bool frame_comes_by(int link, const Deadline& deadline) {
  pollfd entry{.fd = link, .events = POLLIN, .revents = 0};
  for (;;) {
    const int status = ::poll(&entry, 1, poll_timeout(deadline));
    if (status > 0) return true;
    if (status < 0 && errno != EINTR)
      throw SystemError("waiting for a message over a worker's link", errno);
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

int inherited_worker_link() {
  const auto fd = env::integer(env::kLauncherFd);
  return fd && is_worker_link(*fd) ? *fd : -1;
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

bool send_frame(int link, std::string bytes, int file) noexcept {
  if (bytes.size() > kMostBytes) return false;
  Buffer buffer(std::move(bytes));
  if (file >= 0) buffer.passed.send_with(buffer.header, file);
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(link, &buffer.header, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent >= 0;
}

std::optional<Frame> receive_frame(int link, const Deadline& deadline) {
  while (frame_comes_by(link, deadline)) {
    Buffer buffer(std::string(kMostBytes, '\0'));
    buffer.passed.receive_with(buffer.header);
    const ssize_t received = ::recvmsg(link, &buffer.header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    // ECONNRESET, given once, says that the other side ended with messages unread; its own messages
    // follow.
    if (received < 0 && (errno == EINTR || errno == EAGAIN || errno == ECONNRESET)) continue;
    if (received == 0) {
      throw PeerLost("the other end of the link between this worker and its launcher has ended");
    }
    if (received < 0) throw SystemError("receiving a message over a worker's link", errno);
    UniqueFd file = PassedFd::take(buffer.header);
    buffer.bytes.resize(static_cast<std::size_t>(received));
    return Frame{.bytes = std::move(buffer.bytes), .file = std::move(file)};
  }
  return std::nullopt;
}

}  // namespace lockstep::inline internal
