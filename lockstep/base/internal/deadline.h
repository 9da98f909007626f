#pragma once

#include <algorithm>
#include <chrono>

namespace lockstep::inline internal {

/// The time by which an operation must be complete, on the monotonic clock.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Deadline(Clock::time_point instant) : instant_(instant) {}

  static Deadline after(std::chrono::milliseconds duration) {
    return Deadline(Clock::now() + duration);
  }

  bool passed() const { return Clock::now() >= instant_; }

  /// Time left, never negative.
  std::chrono::milliseconds remaining() const {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(instant_ - Clock::now());
    return std::max(left, std::chrono::milliseconds(0));
  }

  Clock::time_point instant() const { return instant_; }

 private:
  Clock::time_point instant_;
};

}  // namespace lockstep::inline internal
