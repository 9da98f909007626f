#pragma once

#include <string_view>

#include "lockstep/base/internal/deadline.h"

namespace lockstep::inline internal {

/// Writes text to a descriptor that somebody may read slowly or not at all: gives up at the
/// deadline, or when the reader is gone (where SIGPIPE is ignored). True when all was written.
bool write_all(int fd, std::string_view text, Deadline deadline) noexcept;

}  // namespace lockstep::inline internal
