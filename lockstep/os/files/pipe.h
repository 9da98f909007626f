#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "lockstep/base/internal/deadline.h"
#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// The two ends of a pipe.
struct Pipe {
  UniqueFd read_end;
  UniqueFd write_end;
};

/// Creates a pipe that is closed on exec.
/// Errors: SystemError.
Pipe make_pipe();

/// Writes text to a descriptor whose reader may be slow. Stops at the deadline, or when the reader
/// is gone (if SIGPIPE is ignored). Returns whether all was written.
bool write_all(int fd, std::string_view text, Deadline deadline) noexcept;

/// Number of bytes that read_to_end() keeps.
inline constexpr std::size_t kMostBytesToEnd = std::size_t{64} << 20;

/// Reads until all writers have closed the descriptor, a read fails, or the deadline expires. Reads
/// bytes beyond kMostBytesToEnd too, so the writer does not block, and discards them.
std::string read_to_end(int fd, Deadline deadline);

}  // namespace lockstep::inline internal
