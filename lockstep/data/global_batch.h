#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/data/epoch_plan.h"

namespace lockstep {

struct GlobalBatchOptions {
  /// Samples.
  std::int64_t dataset_size = 0;
  /// Samples a step, those of all ranks together.
  std::int64_t batch_size = 1;
  /// A new order each epoch, from seed + epoch; otherwise the dataset's order.
  bool shuffle = true;
  std::uint64_t seed = 0;
  /// Leave out the samples of an epoch that fill no batch; otherwise its last batch is smaller.
  bool drop_last = false;
};

/// The samples of each training step, as a function of its number and of the ranks that share it:
/// for training that goes on with another number of ranks (ResilientTraining), or is resumed so.
///
///   const GlobalBatches batches({.dataset_size = 1438, .batch_size = 64, .seed = 1});
///   const auto indices = batches.indices(step, group);
///   …
///   model.backward(loss, {.weight = static_cast<double>(indices.size())});
///
/// Follows EpochPlan: a step has the same samples whatever the number of ranks, and an epoch has
/// each sample once. Where the batch is smaller than the world some ranks have none. Means over the
/// parts are those of the batch when weighted by their sizes, as above. The order of an epoch is
/// kept: a step costs no more than its indices. Threads: one at a time. Errors: UsageError at
/// construction for a batch of none, and when no step has samples.
class GlobalBatches {
 public:
  explicit GlobalBatches(const GlobalBatchOptions& options);

  /// The part of the batch of `step`, which counts from 0 over all epochs.
  /// Errors: UsageError unless 0 <= step and 0 <= rank < world_size.
  std::vector<std::int64_t> indices(std::int64_t step, const BatchPart& part) const;
  std::vector<std::int64_t> indices(std::int64_t step, const ProcessGroup& group) const;

  std::int64_t steps_per_epoch() const { return steps_per_epoch_; }
  std::int64_t epoch_of(std::int64_t step) const { return step / steps_per_epoch_; }

 private:
  const GlobalBatchOptions options_;
  const std::int64_t steps_per_epoch_;
  mutable EpochOrder order_;  ///< of the epoch of the last call
};

}  // namespace lockstep
