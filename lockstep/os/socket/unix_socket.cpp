#include "lockstep/os/socket/unix_socket.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/socket/passed_fd.h"
#include "lockstep/os/socket/poll_timeout.h"

namespace lockstep::inline internal {
namespace {

struct AbstractAddress {
  sockaddr_un address{};
  socklen_t bytes = 0;
};

AbstractAddress abstract_address(const std::string& name) {
  AbstractAddress result;
  result.address.sun_family = AF_UNIX;
  // A leading zero byte makes the name abstract.
  if (name.size() + 1 > sizeof result.address.sun_path) {
    throw UsageError(concat("the socket name '", name, "' is too long"));
  }
  std::memcpy(result.address.sun_path + 1, name.data(), name.size());
  result.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return result;
}

UniqueFd make_socket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd.valid()) throw SystemError("making a Unix socket", errno);
  return fd;
}

bool is_same_user(int socket) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 &&
         peer.uid == ::geteuid();
}

// The message: one number, and one descriptor beside it.
struct Message {
  std::uint64_t number = 0;
  iovec part{.iov_base = &number, .iov_len = sizeof number};
  PassedFd passed;
  msghdr header{};

  Message() {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
  }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;
};

}  // namespace

UniqueFd listen_abstract(const std::string& name) {
  UniqueFd fd = make_socket();
  const AbstractAddress at = abstract_address(name);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&at.address), at.bytes) != 0 ||
      ::listen(fd.get(), SOMAXCONN) != 0) {
    throw SystemError(concat("listening on the Unix socket '", name, "'"), errno);
  }
  return fd;
}

bool readable_by(int fd, Deadline deadline) {
  pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
  for (;;) {
    const int status = ::poll(&entry, 1, poll_timeout(deadline));
    if (status > 0) return true;
    if (status < 0 && errno != EINTR) throw SystemError("waiting for a Unix socket", errno);
    if (deadline.passed()) return false;
  }
}

UniqueFd accept_same_user(int listener, Deadline deadline) {
  while (readable_by(listener, deadline)) {
    UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (!fd.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      throw SystemError("accepting a connection on a Unix socket", errno);
    }
    if (is_same_user(fd.get())) return fd;
  }
  return {};
}

UniqueFd connect_abstract(const std::string& name, const Deadline& deadline) {
  UniqueFd fd = make_socket();
  const auto left = std::max(deadline.remaining(), std::chrono::milliseconds(1));
  const timeval limit{.tv_sec = left.count() / 1000, .tv_usec = left.count() % 1000 * 1000};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  const AbstractAddress at = abstract_address(name);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&at.address), at.bytes) != 0) {
    throw SystemError(concat("connecting to the Unix socket '", name, "'"), errno,
                      "are the processes in one network namespace (one container)?");
  }
  if (!is_same_user(fd.get())) {
    throw SystemError(concat("connecting to the Unix socket '", name, "'"), EPERM,
                      "it belongs to another user");
  }
  return fd;
}

void send_fd(int socket, std::uint64_t number, int fd) {
  Message message;
  message.number = number;
  message.passed.send_with(message.header, fd);
  ssize_t sent;
  do {
    sent = ::sendmsg(socket, &message.header, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) throw SystemError("passing a descriptor to a peer", errno);
}

ReceivedFd receive_fd(int socket, Deadline deadline) {
  if (!readable_by(socket, deadline)) {
    throw TimeoutError("receiving a descriptor from a peer: it did not come in time");
  }
  Message message;
  message.passed.receive_with(message.header);
  ssize_t received;
  do {
    received = ::recvmsg(socket, &message.header, MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  if (received < 0) throw SystemError("receiving a descriptor from a peer", errno);
  UniqueFd fd = PassedFd::take(message.header);
  if (received != sizeof message.number || !fd.valid()) {
    throw SystemError("receiving a descriptor from a peer", ECONNRESET, "the peer is gone");
  }
  return {.number = message.number, .fd = std::move(fd)};
}

}  // namespace lockstep::inline internal
