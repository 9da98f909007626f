#pragma once

#include <algorithm>

#include "lockstep/base/internal/deadline.h"

namespace lockstep::inline internal {

/// Time left as poll(2) takes it. At most an hour: the caller looks at the deadline again anyway.
inline int poll_timeout(Deadline deadline) {
  constexpr std::chrono::milliseconds kLongest = std::chrono::hours(1);
  return static_cast<int>(std::min(deadline.remaining(), kLongest).count());
}

}  // namespace lockstep::inline internal
