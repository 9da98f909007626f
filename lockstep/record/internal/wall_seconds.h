#pragma once

#include <chrono>

namespace lockstep::inline internal {

/// This machine's time in seconds since 1970: for display, not for timeouts.
inline double wall_seconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

}  // namespace lockstep::inline internal
