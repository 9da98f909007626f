#pragma once

#include <chrono>

namespace lockstep::inline internal {

/// What this machine takes for the time, in seconds since 1970: to be told, not to be waited by.
inline double wall_seconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

}  // namespace lockstep::inline internal
