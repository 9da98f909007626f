#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "lockstep/base/internal/deadline.h"

namespace lockstep::gloo_backend {

/// While it lives, the wait for a message of Gloo returns false at `until`: Gloo's own timeout ends
/// the group. At most one wait of the message at a time.
/// Threads: the one that waits; one thread of the process interrupts all waits. Where that cannot
/// be made, the wait has no limit.
class WaitLimit {
 public:
  WaitLimit(c10d::Work& work, Deadline until);
  ~WaitLimit();
  WaitLimit(const WaitLimit&) = delete;
  WaitLimit& operator=(const WaitLimit&) = delete;

  c10d::Work& work() const { return work_; }
  Deadline::Clock::time_point instant() const { return instant_; }

 private:
  c10d::Work& work_;
  const Deadline::Clock::time_point instant_;
};

}  // namespace lockstep::gloo_backend
