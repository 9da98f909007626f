#pragma once

namespace lockstep::inline internal {

/// While it lives, the calling thread and those that it starts do not interrupt others on their
/// processor when they wake up, but wait until those sleep or have used their share (the policy
/// SCHED_BATCH, sched(7)); the threads keep that for good. For threads that serve the one they
/// would interrupt. Nothing changes where the thread has another policy than the usual one.
/// Threads: made and destroyed by the same thread.
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
