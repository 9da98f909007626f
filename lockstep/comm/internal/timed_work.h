#pragma once

#include <chrono>
#include <stdexcept>

namespace lockstep::inline internal {

/// What a backend's handle of a message is, too, where the deadline of a single message can be set:
/// c10d's send and recv take none. Threads: any.
class TimedWork {
 public:
  virtual ~TimedWork() = default;
  /// From now on, instead of the backend's.
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;
};

/// A wait was over before its work, which goes on and can be waited for again.
class WaitExpired : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace lockstep::inline internal
