#pragma once

namespace lockstep::inline internal {

/// While it lives, the calling thread and threads that it starts do not preempt others when they
/// wake up: policy SCHED_BATCH, sched(7). Threads that it started keep the policy. For threads that
/// serve the thread they would preempt. No effect if the thread has another policy than the
/// default.
/// Threads: created and destroyed by the same thread.
class BatchScheduling {
 public:
  BatchScheduling();
  ~BatchScheduling();
  BatchScheduling(const BatchScheduling&) = delete;
  BatchScheduling& operator=(const BatchScheduling&) = delete;

 private:
  bool changed_ = false;
};

}  // namespace lockstep::inline internal
