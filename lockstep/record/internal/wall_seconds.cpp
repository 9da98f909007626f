#include "lockstep/record/internal/wall_seconds.h"

#include <chrono>

namespace lockstep::inline internal {

double wall_seconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

}  // namespace lockstep::inline internal
