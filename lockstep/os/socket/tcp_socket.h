#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include "lockstep/base/internal/deadline.h"
#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// A TCP socket bound to `host` (a name or an address; IPv4 or IPv6) and `port` (0: any free one),
/// not yet listening. While it lives no other program is given the port.
/// It is closed in programs that this one executes, unless made inheritable.
/// Errors: SystemError naming host and port: taken, not local, not permitted; UsageError for a host
/// that does not resolve.
UniqueFd bind_tcp(const std::string& host, std::uint16_t port);

/// As bind_tcp, for peers on other machines that know this one by `host`. Bound to all addresses
/// where `host` is a name that only this machine takes for loopback, as Debian's /etc/hosts does
/// with a machine's own name.
UniqueFd bind_tcp_if_own(const std::string& host, std::uint16_t port);

/// As bind_tcp_if_own, but bound to all addresses, too, where `host` is none of ours: behind a
/// translated address or a service name.
UniqueFd bind_tcp_for_peers(const std::string& host, std::uint16_t port);

/// The port that a bound socket has. Errors: SystemError when `fd` is no bound socket.
std::uint16_t bound_port(int fd);

/// Returns as soon as something accepts connections at `host` and `port`.
/// `while_waiting` is called before each try; what it throws ends the wait.
/// Errors: TimeoutError at the deadline; UsageError for a host that does not resolve.
void wait_for_listener(const std::string& host, std::uint16_t port, const Deadline& deadline,
                       const std::function<void()>& while_waiting = {});

/// Whether something accepts connections at `host` and `port` now: it gets one, which ends at once.
/// Errors: UsageError for a host that does not resolve.
bool accepts_connections(const std::string& host, std::uint16_t port, const Deadline& deadline);

/// The connections of this process to `port` of any machine: for those that a library keeps to
/// itself.
std::set<int> connections_to(std::uint16_t port);

/// A read of one of these fails when nothing has come for so long, as if the network had.
void limit_reads_from(std::uint16_t port, std::chrono::milliseconds timeout);

/// A numeric address, of version 4 or 6, that leads to this machine alone.
bool is_loopback_address(const std::string& address);

/// The address of this machine from which packets to `host` leave: where peers of that network
/// reach this machine. Errors: UsageError for a host that does not resolve; SystemError without a
/// route.
std::string local_address_towards(const std::string& host);

}  // namespace lockstep::inline internal
