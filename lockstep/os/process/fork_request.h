#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/internal/env.h"

/// What a launcher and a fork server (fork_server.h) say to each other over their socket.
///
/// The server sends its pid, once. The launcher sends requests, each with descriptors: the
/// request's own socket, then its files. Over that socket the new process sends its pid, or -errno,
/// and waits for a number before it runs: where the launcher has given up, it ends instead.
namespace lockstep::inline internal {

inline constexpr env::Variable kForkServerFd{
    "LOCKSTEP_FORK_SERVER_FD", "int",
    "socket of the fork server that the first worker leaves behind; set by lockstep run"};

/// The name of the note in the file of a program that can leave a fork server.
inline constexpr const char kForkServerNote[] = "Lockstep";

struct ForkRequest {
  /// The numbers under which the new process has the request's files.
  std::vector<int> files{};
  /// As SpawnOptions has them.
  std::vector<int> cpus{};
  std::vector<std::string> environment{};
};

std::string encoded(const ForkRequest& request);
/// Nothing when these are not the bytes of a request.
std::optional<ForkRequest> decoded_fork_request(std::string_view bytes);

}  // namespace lockstep::inline internal
