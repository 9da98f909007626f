#pragma once

#include <memory>

namespace lockstep {

/// A collective under way. Copies refer to the same collective.
/// Threads: any may wait. Lifetime: holds the tensors until complete.
class Work {
 public:
  struct State;

  /// Complete from the start: what a collective of one rank returns.
  Work() = default;
  explicit Work(std::shared_ptr<const State> state) : state_(std::move(state)) {}

  /// Whether wait() would return or throw at once: true for a collective that is complete, and for
  /// one that has failed, so that `while (!work.is_completed()) compute();` ends. A peer's death is
  /// found when it is asked for, over gloo and shm within milliseconds; the deadline half a second
  /// after it at the latest. It never throws; results are in place when wait() has returned, not
  /// before.
  bool is_completed() const;

  /// Blocks until the collective is complete, for CUDA tensors until the current stream is made to
  /// wait for it; a line every ten seconds says so. Errors: TimeoutError, PeerLost, CommError, each
  /// naming the operation, rank, sequence number and deadline; the same each time. After an error
  /// the group is of no further use.
  void wait() const;

 private:
  std::shared_ptr<const State> state_;
};

}  // namespace lockstep
