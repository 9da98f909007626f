#pragma once

#include <algorithm>

#include "lockstep/base/internal/deadline.h"

namespace lockstep::inline internal {

/// Remaining time for poll(2) in ms, at most an hour: the caller checks the deadline again anyway.
inline int poll_timeout(Deadline deadline) {
  constexpr std::chrono::milliseconds kLongest = std::chrono::hours(1);
  return static_cast<int>(std::min(deadline.remaining(), kLongest).count());
}

}  // namespace lockstep::inline internal
