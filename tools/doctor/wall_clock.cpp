#include "tools/doctor/wall_clock.h"

#include <chrono>

namespace lockstep::inline internal {

double wall_clock_us() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(now).count();
}

}  // namespace lockstep::inline internal
