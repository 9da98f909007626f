#include "tools/doctor/wall_clock.h"

#include <chrono>

namespace lockstep {

double wall_clock_us() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(now).count();
}

}  // namespace lockstep
