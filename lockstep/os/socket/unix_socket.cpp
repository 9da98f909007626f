#include "lockstep/os/socket/unix_socket.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
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

UniqueFd make_socket(int type) {
  UniqueFd fd(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  if (!fd.valid()) throw SystemError("make a Unix socket", errno);
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

// Names the folder by its descriptor, however long its path is.
class PathAddress {
 public:
  explicit PathAddress(const std::filesystem::path& path)
      : folder_(::open(path.parent_path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)) {
    if (!folder_.valid()) throw SystemError(concat("open ", path.parent_path().string()), errno);
    const std::string name = concat("/proc/self/fd/", folder_.get(), "/", path.filename().string());
    address_.sun_family = AF_UNIX;
    if (name.size() >= sizeof(address_.sun_path)) {
      throw SystemError(concat("the socket ", path.string()), ENAMETOOLONG);
    }
    std::memcpy(address_.sun_path, name.c_str(), name.size() + 1);
  }

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address_); }
  static constexpr socklen_t kBytes = sizeof(sockaddr_un);

 private:
  UniqueFd folder_;
  sockaddr_un address_{};
};

}  // namespace

UniqueFd listen_abstract(const std::string& name) {
  UniqueFd fd = make_socket(SOCK_SEQPACKET);
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
  UniqueFd fd = make_socket(SOCK_SEQPACKET);
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

UniqueFd listen_at_path(const std::filesystem::path& path) {
  constexpr int kBacklog = 64;
  UniqueFd fd = make_socket(SOCK_STREAM | SOCK_NONBLOCK);
  const PathAddress address(path);
  if (::bind(fd.get(), address.get(), PathAddress::kBytes) != 0 ||
      ::listen(fd.get(), kBacklog) != 0) {
    throw SystemError(concat("listen at ", path.string()), errno);
  }
  return fd;
}

UniqueFd connect_to_path(const std::filesystem::path& path) {
  UniqueFd fd = make_socket(SOCK_STREAM | SOCK_NONBLOCK);
  const PathAddress address(path);
  if (::connect(fd.get(), address.get(), PathAddress::kBytes) != 0) {
    throw SystemError(concat("connect to ", path.string()), errno);
  }
  return fd;
}

}  // namespace lockstep::inline internal
