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

/// Creates a listening socket with the abstract name `name`.
/// Errors: SystemError.
UniqueFd listen_abstract(const std::string& name);

/// Whether a connection, a message or the peer's end arrives before the deadline.
/// Errors: SystemError.
bool readable_by(int socket, Deadline deadline);

/// Accepts a connection of a process of this user; invalid if none arrives before the deadline.
/// Closes connections of other users.
/// Errors: SystemError.
UniqueFd accept_same_user(int listener, Deadline deadline);

/// Connects to a socket with an abstract name.
/// Errors: SystemError, also if no process listens under that name in this network namespace or
/// accepts before the deadline.
UniqueFd connect_abstract(const std::string& name,
                          const Deadline& deadline = Deadline::after(std::chrono::minutes(1)));

/// Sends a number and a descriptor; the receiver gets a duplicate.
/// Errors: SystemError.
void send_fd(int socket, std::uint64_t number, int fd);

/// A number and a descriptor, as send_fd() sent them.
struct ReceivedFd {
  std::uint64_t number = 0;
  UniqueFd fd;
};

/// Errors: SystemError if the sender is gone or sends none; TimeoutError at the deadline.
ReceivedFd receive_fd(int socket, Deadline deadline);

/// Unix stream sockets with a name in the file system: users who can enter the folder can connect.
/// The path may be longer than the 107 characters that the system's calls take.

/// Creates a socket that listens at `path`.
/// Errors: SystemError.
UniqueFd listen_at_path(const std::filesystem::path& path);

/// Connects to `path` without waiting.
/// Errors: SystemError: ECONNREFUSED if no process listens any more, EAGAIN if the listener accepts
/// no connections.
UniqueFd connect_to_path(const std::filesystem::path& path);

}  // namespace lockstep::inline internal
