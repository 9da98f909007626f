#pragma once

#include <chrono>

namespace lockstep {

/// What a backend's handle of a message is, too, where the deadline of a single message can be set:
/// c10d's send and recv take none. Threads: any.
class TimedWork {
 public:
  virtual ~TimedWork() = default;
  /// From now on, instead of the backend's.
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;
};

}  // namespace lockstep
