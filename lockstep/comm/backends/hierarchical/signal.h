#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>

#include "lockstep/base/internal/mutex.h"

namespace lockstep::hierarchical {

/// Wakes whoever waits for one of several things. Threads: any.
class Signal {
 public:
  void raise() {
    {
      const MutexLock lock(mutex_);
      ++count_;
    }
    raised_.notify_all();
  }

  /// To be taken before looking at what is waited for.
  std::uint64_t count() {
    const MutexLock lock(mutex_);
    return count_;
  }

  /// Returns once the signal was raised since `count`, or after `limit`.
  void wait_past(std::uint64_t count, std::chrono::milliseconds limit) {
    MutexLock lock(mutex_);
    raised_.wait_for(lock.native(), limit,
                     [&]() LOCKSTEP_REQUIRES(mutex_) { return count_ != count; });
  }

 private:
  Mutex mutex_;
  std::condition_variable raised_;
  std::uint64_t count_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
};

}  // namespace lockstep::hierarchical
