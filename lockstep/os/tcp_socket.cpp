#include "lockstep/os/tcp_socket.h"

#include <cerrno>
#include <memory>

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

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

}  // namespace

UniqueFd bind_tcp(const std::string& host, std::uint16_t port) {
  const AddressList addresses = resolve(host, port);
  int last_errno = EADDRNOTAVAIL;
  for (const addrinfo* address = addresses.get(); address; address = address->ai_next) {
    UniqueFd fd(::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = 1;
    // A port whose last connections linger in TIME_WAIT is free; one that somebody listens on is
    // not.
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

std::uint16_t bound_port(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    throw SystemError(concat("getsockname of descriptor ", fd), errno);
  }
  switch (address.ss_family) {
    case AF_INET:
      return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
    case AF_INET6:
      return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
    default:
      throw SystemError(concat("port of descriptor ", fd), EAFNOSUPPORT);
  }
}

}  // namespace lockstep
