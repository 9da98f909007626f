#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/internal/env.h"

/// Messages between a launcher and a fork server (fork_server.h) over their socket.
///
/// The server sends its pid, once. The launcher sends requests, each with descriptors: the
/// request's own socket, then its files. Over that socket the new process sends its pid, or -errno,
/// and waits for a number before it runs. If the launcher has closed the socket, it exits.
namespace lockstep::inline internal {

inline constexpr env::Variable kForkServerFd{
    "LOCKSTEP_FORK_SERVER_FD", "int",
    "socket of the fork server that the first worker leaves behind; set by lockstep run"};

/// Name of the ELF note in a program that can leave a fork server.
inline constexpr const char kForkServerNote[] = "Lockstep";

/// A request for a new process.
struct ForkRequest {
  /// Numbers of the request's files in the new process.
  std::vector<int> files{};
  /// See SpawnOptions.
  std::vector<int> cpus{};
  std::vector<std::string> environment{};
};

std::string encoded(const ForkRequest& request);
/// Decodes a request; empty for other bytes.
std::optional<ForkRequest> decoded_fork_request(std::string_view bytes);

}  // namespace lockstep::inline internal
