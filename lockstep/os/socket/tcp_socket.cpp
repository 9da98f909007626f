#include "lockstep/os/socket/tcp_socket.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/os/socket/poll_timeout.h"

namespace lockstep::inline internal {
namespace {

using std::chrono::milliseconds;

// How long to leave a port alone on which nobody listens yet.
constexpr milliseconds kRetryAfter{5};

constexpr const char* kAnyAddress = "0.0.0.0";

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

AddressList resolve(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | AI_PASSIVE;
  addrinfo* found = nullptr;
  const int status = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (status != 0) {
    throw UsageError(concat("host '", host, "' does not resolve: ", ::gai_strerror(status),
                            "; use an address or a name that this machine knows"));
  }
  return AddressList(found, &::freeaddrinfo);
}

// Connects within the deadline; returns 0 or the errno.
int try_connect(const addrinfo& address, const Deadline& deadline) {
  const UniqueFd fd(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return errno;
  if (::connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd waiting{fd.get(), POLLOUT, 0};
  if (::poll(&waiting, 1, poll_timeout(deadline)) <= 0) return ETIMEDOUT;
  int error = 0;
  socklen_t length = sizeof(error);
  if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
  return error;
}

bool is_loopback(const addrinfo& address) {
  if (address.ai_family == AF_INET6) {
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address.ai_addr)->sin6_addr);
  }
  const auto ip = ntohl(reinterpret_cast<const sockaddr_in*>(address.ai_addr)->sin_addr.s_addr);
  return (ip >> 24) == IN_LOOPBACKNET;
}

std::optional<std::uint16_t> port_of(const sockaddr_storage& address) {
  switch (address.ss_family) {
    case AF_INET:
      return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
    case AF_INET6:
      return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
    default:
      return std::nullopt;
  }
}

// Connects to the first address that accepts; returns 0 or the errno of the last.
int try_each(const AddressList& addresses, const Deadline& deadline) {
  int last_errno = ECONNREFUSED;
  for (const addrinfo* address = addresses.get(); address; address = address->ai_next) {
    last_errno = try_connect(*address, deadline);
    if (last_errno == 0) break;
  }
  return last_errno;
}

// The address from which packets to `target` leave; empty without a route.
std::string source_address(const addrinfo& target) {
  const UniqueFd fd(::socket(target.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage local{};
  socklen_t length = sizeof(local);
  char text[NI_MAXHOST];
  const bool found = fd.valid() && ::connect(fd.get(), target.ai_addr, target.ai_addrlen) == 0 &&
                     ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&local), &length) == 0 &&
                     ::getnameinfo(reinterpret_cast<sockaddr*>(&local), length, text, sizeof(text),
                                   nullptr, 0, NI_NUMERICHOST) == 0;
  return found ? text : "";
}

// A network name, not an address and not localhost, that resolves to loopback: on other machines it
// means this one's address in the network.
bool means_loopback_here_only(const std::string& host, const AddressList& addresses) {
  in6_addr binary{};
  const bool is_address = ::inet_pton(AF_INET, host.c_str(), &binary) == 1 ||
                          ::inet_pton(AF_INET6, host.c_str(), &binary) == 1;
  return !is_address && host != "localhost" && is_loopback(*addresses);
}

}  // namespace

UniqueFd bind_tcp(const std::string& host, std::uint16_t port) {
  const AddressList addresses = resolve(host, port);
  int last_errno = EADDRNOTAVAIL;
  for (const addrinfo* address = addresses.get(); address; address = address->ai_next) {
    UniqueFd fd(::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    // A port whose last connections linger in TIME_WAIT is free; one that somebody listens on is
    // not. One that the system chooses is given to nobody else, but may still be asked for: by a
    // rank 0 that does not take our socket.
    const int on = 1;
    if (fd.valid() && ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
        ::bind(fd.get(), address->ai_addr, address->ai_addrlen) == 0) {
      return fd;
    }
    last_errno = errno;
  }
  const char* advice =
      last_errno == EADDRINUSE
          ? "another program listens there; choose another port, or 0 for any free one"
          : "choose an address of this machine and a port that you may use";
  throw SystemError(concat("bind to ", host, " port ", port), last_errno, advice);
}

UniqueFd bind_tcp_if_own(const std::string& host, std::uint16_t port) {
  const bool any = means_loopback_here_only(host, resolve(host, port));
  return bind_tcp(any ? kAnyAddress : host, port);
}

UniqueFd bind_tcp_for_peers(const std::string& host, std::uint16_t port) {
  try {
    return bind_tcp_if_own(host, port);
  } catch (const SystemError& error) {
    if (error.errno_value() != EADDRNOTAVAIL) throw;
  }
  return bind_tcp(kAnyAddress, port);
}

std::uint16_t bound_port(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    throw SystemError(concat("getsockname of descriptor ", fd), errno);
  }
  const auto port = port_of(address);
  if (!port) throw SystemError(concat("port of descriptor ", fd), EAFNOSUPPORT);
  return *port;
}

bool accepts_connections(const std::string& host, std::uint16_t port, const Deadline& deadline) {
  return try_each(resolve(host, port), deadline) == 0;
}

std::set<int> connections_to(std::uint16_t port) {
  std::set<int> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const auto fd = parse_number<int>(entry.path().filename().native());
    sockaddr_storage address{};
    socklen_t length = sizeof(address);
    if (fd && ::getpeername(*fd, reinterpret_cast<sockaddr*>(&address), &length) == 0 &&
        port_of(address) == port) {
      found.insert(*fd);
    }
  }
  return found;
}

void limit_reads_from(std::uint16_t port, std::chrono::milliseconds timeout) {
  const timeval limit{.tv_sec = timeout.count() / 1000, .tv_usec = timeout.count() % 1000 * 1000};
  for (const int fd : connections_to(port)) {
    ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  }
}

void wait_for_listener(const std::string& host, std::uint16_t port, const Deadline& deadline,
                       const std::function<void()>& while_waiting) {
  const AddressList addresses = resolve(host, port);
  int last_errno = ECONNREFUSED;
  do {
    if (while_waiting) while_waiting();
    last_errno = try_each(addresses, deadline);
    if (last_errno == 0) return;
    // There is nothing to wait on but the clock: the listener is a process elsewhere.
    ::poll(nullptr, 0, static_cast<int>(std::min(kRetryAfter, deadline.remaining()).count()));
  } while (!deadline.passed());
  throw TimeoutError(concat("nobody listens at ", host, " port ", port, " (",
                            std::generic_category().message(last_errno),
                            "); check the address, and that rank 0 runs"));
}

std::string local_address_towards(const std::string& host) {
  // Connecting a datagram socket sends nothing; it only chooses the route. Any port will do.
  constexpr std::uint16_t kDiscardPort = 9;
  // No machine has an address of RFC 5737's TEST-NET-1: packets to it would take the default route.
  constexpr const char* kElsewhere = "192.0.2.1";
  AddressList addresses = resolve(host, kDiscardPort);
  if (means_loopback_here_only(host, addresses)) {
    AddressList elsewhere = resolve(kElsewhere, kDiscardPort);
    std::string address = source_address(*elsewhere);
    if (!address.empty()) return address;
  }
  for (const addrinfo* candidate = addresses.get(); candidate; candidate = candidate->ai_next) {
    std::string address = source_address(*candidate);
    if (!address.empty()) return address;
  }
  throw SystemError(concat("route to ", host), ENETUNREACH);
}

bool is_loopback_address(const std::string& address) {
  constexpr std::uint32_t kLoopbackNetwork = 127;
  in_addr four{};
  in6_addr six{};
  if (::inet_pton(AF_INET, address.c_str(), &four) == 1) {
    return ntohl(four.s_addr) >> 24 == kLoopbackNetwork;
  }
  return ::inet_pton(AF_INET6, address.c_str(), &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
}

}  // namespace lockstep::inline internal
