#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "lockstep/base/internal/deadline.h"
#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

struct Pipe {
  UniqueFd read_end;
  UniqueFd write_end;
};

/// A pipe whose ends are closed in programs that this one executes. Errors: SystemError.
Pipe make_pipe();

/// Writes text to a descriptor that somebody may read slowly or not at all: gives up at the
/// deadline, or when the reader is gone (where SIGPIPE is ignored). True when all was written.
bool write_all(int fd, std::string_view text, Deadline deadline) noexcept;

/// Of what comes from a descriptor, the first so many bytes are kept.
inline constexpr std::size_t kMostBytesToEnd = std::size_t{64} << 20;

/// All that comes from a descriptor until its writers are gone; at the deadline, what has come by
/// then. Errors of reading end it like the writers' end. What comes beyond kMostBytesToEnd is read,
/// so that a writer does not wait, and thrown away.
std::string read_to_end(int fd, Deadline deadline);

}  // namespace lockstep::inline internal
