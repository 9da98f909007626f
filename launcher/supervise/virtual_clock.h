#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "launcher/supervise/supervision.h"

namespace lockstep::inline internal {

/// Simulated time: runs calls in order of their time, and jumps from one to the next.
class VirtualClock {
 public:
  using Time = SupervisionState::Time;

  Time now() const { return now_; }
  void after(std::chrono::microseconds delay, std::function<void()> call) {
    calls_.push({now_ + delay, next_++, std::move(call)});
  }
  void at(Time time, std::function<void()> call) {
    after(std::chrono::duration_cast<std::chrono::microseconds>(time - now_), std::move(call));
  }
  /// Runs the next call. Returns false if there is none before or at `end`.
  bool run_next(Time end) {
    if (calls_.empty() || calls_.top().time > end) return false;
    const Call call = calls_.top();
    calls_.pop();
    now_ = call.time;
    call.run();
    return true;
  }

 private:
  struct Call {
    Time time;
    std::uint64_t number;
    std::function<void()> run;
    bool operator<(const Call& other) const {
      return std::pair(other.time, other.number) < std::pair(time, number);
    }
  };

  Time now_{};
  std::uint64_t next_ = 0;
  std::priority_queue<Call> calls_;
};

}  // namespace lockstep::inline internal
