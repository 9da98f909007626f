#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace lockstep::hierarchical {

/// Wakes whoever waits for one of several things. Threads: any.
class Signal {
 public:
  void raise() {
    {
      const std::lock_guard lock(mutex_);
      ++count_;
    }
    raised_.notify_all();
  }

  /// To be taken before looking at what is waited for.
  std::uint64_t count() {
    const std::lock_guard lock(mutex_);
    return count_;
  }

  /// Returns once the signal was raised since `count`, or after `limit`.
  void wait_past(std::uint64_t count, std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    raised_.wait_for(lock, limit, [&] { return count_ != count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable raised_;
  std::uint64_t count_ = 0;  // guarded by mutex_
};

}  // namespace lockstep::hierarchical
