#pragma once

#include <filesystem>

#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// Unix stream sockets with a name in the file system: whoever may enter the folder may connect.
/// The path may be longer than the 107 characters that the system's calls take.

/// A socket that listens at `path`, which it makes. Errors: SystemError.
UniqueFd listen_at_path(const std::filesystem::path& path);

/// A connection to `path`, without waiting. Errors: SystemError: ECONNREFUSED when nobody listens
/// any more, EAGAIN when whoever listens takes no connections.
UniqueFd connect_to_path(const std::filesystem::path& path);

}  // namespace lockstep::inline internal
