#pragma once

#include <memory>

namespace lockstep {

/// Handle of a collective that may still run. Copies refer to the same collective.
/// Threads: any thread may wait.
/// Lifetime: keeps the tensors alive until the collective is complete.
class Work {
 public:
  struct State;

  /// A complete collective, as a group of one rank returns it.
  Work() = default;
  explicit Work(std::shared_ptr<const State> state) : state_(std::move(state)) {}

  /// Returns whether wait() would return or throw at once: true for a complete and for a failed
  /// collective, so `while (!work.is_completed()) compute();` ends. Over gloo and shm a killed peer
  /// shows within milliseconds; every failure shows at most 500 ms after the deadline. Never
  /// throws. Call wait() before you read the results.
  bool is_completed() const;

  /// Blocks until the collective is complete. For CUDA tensors it returns when the current stream
  /// has been made to wait. Logs a warning every 10 s.
  /// Errors: TimeoutError, PeerLost or CommError with operation, rank, sequence number and timeout;
  /// the same error on each call. After an error the group is unusable.
  void wait() const;

 private:
  std::shared_ptr<const State> state_;
};

}  // namespace lockstep
