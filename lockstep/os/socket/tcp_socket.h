#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include "lockstep/base/internal/deadline.h"
#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// Creates a TCP socket bound to `host` (a name, or an IPv4 or IPv6 address) and `port` (0: any
/// free one), not yet listening. While it exists no other program gets the port. It is closed on
/// exec unless made inheritable.
/// Errors: SystemError with host and port: in use, not local, not permitted; UsageError for a host
/// that does not resolve.
UniqueFd bind_tcp(const std::string& host, std::uint16_t port);

/// Like bind_tcp, for peers on other machines that know this one as `host`. Binds to all addresses
/// if `host` is a name that this machine resolves to loopback, as Debian's /etc/hosts does for a
/// machine's own name.
UniqueFd bind_tcp_if_own(const std::string& host, std::uint16_t port);

/// Like bind_tcp_if_own; binds to all addresses also if `host` is not an address of this machine:
/// behind NAT or a service name.
UniqueFd bind_tcp_for_peers(const std::string& host, std::uint16_t port);

/// Port of a bound socket.
/// Errors: SystemError if `fd` is no bound socket.
std::uint16_t bound_port(int fd);

/// Returns when a process accepts connections at `host` and `port`. Calls `while_waiting` before
/// each try; an exception from it ends the wait.
/// Errors: TimeoutError at the deadline; UsageError for a host that does not resolve.
void wait_for_listener(const std::string& host, std::uint16_t port, const Deadline& deadline,
                       const std::function<void()>& while_waiting = {});

/// Whether a process accepts connections at `host` and `port` now: opens a connection and closes it
/// at once.
/// Errors: UsageError for a host that does not resolve.
bool accepts_connections(const std::string& host, std::uint16_t port, const Deadline& deadline);

/// This process's connections to `port` of any machine: for connections that a library hides.
std::set<int> connections_to(std::uint16_t port);

/// Makes reads of these connections fail after `timeout` without data, as if the network had
/// failed.
void limit_reads_from(std::uint16_t port, std::chrono::milliseconds timeout);

/// Whether a numeric IPv4 or IPv6 address is this machine's loopback.
bool is_loopback_address(const std::string& address);

/// This machine's address on the route to `host`: peers in that network can reach it there.
/// Errors: UsageError for a host that does not resolve; SystemError without a route.
std::string local_address_towards(const std::string& host);

}  // namespace lockstep::inline internal
