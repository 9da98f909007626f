#pragma once

#include <chrono>

#include "lockstep/base/internal/deadline.h"

namespace lockstep::shm {

/// How often a poll that has found nothing looks further, at peers' lives and other groups: a
/// program may poll as often as it can.
/// Threads: one at a time.
class LookLimit {
 public:
  /// Whether the last look is long enough ago; then this is one.
  bool allows(Deadline::Clock::time_point now) {
    if (now < next_) return false;
    next_ = now + kBetweenLooks;
    return true;
  }

  static constexpr std::chrono::milliseconds kBetweenLooks{2};

 private:
  Deadline::Clock::time_point next_{};
};

}  // namespace lockstep::shm
