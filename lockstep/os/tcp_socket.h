#pragma once

#include <cstdint>
#include <string>

#include "lockstep/os/unique_fd.h"

namespace lockstep {

/// A TCP socket bound to `host` (a name or an address; IPv4 or IPv6) and `port` (0: any free one),
/// not yet listening. While it lives no other program is given the port.
/// It is closed in programs that this one executes, unless made inheritable.
/// Errors: SystemError naming host and port: taken, not local, not permitted; UsageError for a host
/// that does not resolve.
UniqueFd bind_tcp(const std::string& host, std::uint16_t port);

/// The port that a bound socket has. Errors: SystemError when `fd` is no bound socket.
std::uint16_t bound_port(int fd);

}  // namespace lockstep
