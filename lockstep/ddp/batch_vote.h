#pragma once

#include <vector>

#include "lockstep/ddp/empty_batch.h"
#include "lockstep/ddp/internal/replica.h"

namespace lockstep {

/// How ranks with different numbers of batches agree on how many to run: each tells, with the
/// gradients of a step, how many batches it has for the next one, so that a step costs no round
/// trip. All ranks make the same calls.
/// Threads: the training thread. Lifetime: the replica must outlive it. Errors: as Work::wait.
class BatchVote {
 public:
  /// A step takes up to `batches_per_step`.
  BatchVote(Replica& replica, int batches_per_step);
  ~BatchVote();
  BatchVote(const BatchVote&) = delete;
  BatchVote& operator=(const BatchVote&) = delete;

  /// Before the first step: the most that any rank has.
  int ask(int available);
  /// Whether all ranks had a batch when they were asked.
  bool all_have() const { return all_have_; }

  /// Of a step's batches, before each: a pass of one that is not this rank's own adds nothing to
  /// gradients.
  void begin_batch(bool has_data);

  /// Goes with the next exchange of gradients. `has_data`: whether this rank has had a batch in
  /// this step; its gradients count only then.
  void cast(bool has_data, int available);
  /// After that exchange: the most that any rank has for the next step. Where no gradients were
  /// exchanged it asks now.
  int count();

  /// Of the first batch of the first rank that has one, on all ranks; for this rank's where it has
  /// one. Collective.
  std::vector<BatchTensorShape> agree_on_shapes(const std::vector<BatchTensorShape>& own) const;

 private:
  Replica& replica_;
  int cast_ = 0;
  bool all_have_ = true;
};

}  // namespace lockstep
