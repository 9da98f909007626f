#pragma once

#include <cstddef>
#include <string>

#include "lockstep/base/internal/deadline.h"

namespace lockstep::inline internal {

/// Of what comes from a descriptor, the first so many bytes are kept.
inline constexpr std::size_t kMostBytesToEnd = std::size_t{64} << 20;

/// All that comes from a descriptor until its writers are gone; at the deadline, what has come by
/// then. Errors of reading end it like the writers' end. What comes beyond kMostBytesToEnd is read,
/// so that a writer does not wait, and thrown away.
std::string read_to_end(int fd, Deadline deadline);

}  // namespace lockstep::inline internal
