#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "lockstep/base/internal/deadline.h"
#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// Passing descriptors between processes of one machine, over Unix sockets whose names exist in no
/// file system (abstract): nothing is left behind, and only processes of the same network namespace
/// can connect. Both sides must run as the same user.

/// A listening socket called `name`. Errors: SystemError.
UniqueFd listen_abstract(const std::string& name);

/// Whether a connection, a message or the other side's end is there by the deadline.
/// Errors: SystemError.
bool readable_by(int socket, Deadline deadline);

/// Accepts one connection of a process of this user, if one has come by the deadline; connections
/// of others are closed. Errors: SystemError.
UniqueFd accept_same_user(int listener, Deadline deadline);

/// Errors: SystemError, also when nobody listens under that name in this network namespace, or who
/// does accepts nobody by the deadline.
UniqueFd connect_abstract(const std::string& name,
                          const Deadline& deadline = Deadline::after(std::chrono::minutes(1)));

/// Sends a number and a descriptor; the receiver gets a duplicate. Errors: SystemError.
void send_fd(int socket, std::uint64_t number, int fd);

struct ReceivedFd {
  std::uint64_t number = 0;
  UniqueFd fd;
};

/// Errors: SystemError when the sender is gone or sends none; TimeoutError at the deadline.
ReceivedFd receive_fd(int socket, Deadline deadline);

/// Unix stream sockets with a name in the file system: whoever may enter the folder may connect.
/// The path may be longer than the 107 characters that the system's calls take.

/// A socket that listens at `path`, which it makes. Errors: SystemError.
UniqueFd listen_at_path(const std::filesystem::path& path);

/// A connection to `path`, without waiting. Errors: SystemError: ECONNREFUSED when nobody listens
/// any more, EAGAIN when whoever listens takes no connections.
UniqueFd connect_to_path(const std::filesystem::path& path);

}  // namespace lockstep::inline internal
