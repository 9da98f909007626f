#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/data/epoch_plan.h"

namespace lockstep {

/// Options of GlobalBatches.
struct GlobalBatchOptions {
  /// Samples of the dataset.
  std::int64_t dataset_size = 0;
  /// Samples per step, over all ranks.
  std::int64_t batch_size = 1;
  /// Shuffle each epoch with seed + epoch. False: the dataset's order.
  bool shuffle = true;
  std::uint64_t seed = 0;
  /// Drop the last samples of an epoch if they do not fill a batch. False: its last batch is
  /// smaller.
  bool drop_last = false;
};

/// Samples of each training step, as a function of the step number and of the ranks: for training
/// that continues or resumes on another number of ranks, such as ResilientTraining.
///
/// ```cpp
/// const GlobalBatches batches({.dataset_size = 1438, .batch_size = 64, .seed = 1});
/// const auto indices = batches.indices(step, group);
/// …
/// model.backward(loss, {.weight = static_cast<double>(indices.size())});
/// ```
///
/// Follows EpochPlan: a step has the same samples on any number of ranks, and an epoch has each
/// sample once. If the batch is smaller than the number of ranks, some ranks get no samples. Weight
/// each rank's mean by its number of samples, as above, to get the mean over the batch. The order
/// of an epoch is kept, so a step costs only its indices.
///
/// Threads: one at a time.
/// Errors: UsageError from the constructor for a batch size below 1, and if no step has samples.
class GlobalBatches {
 public:
  explicit GlobalBatches(const GlobalBatchOptions& options);

  /// The samples of this rank in `step`, which counts from 0 over all epochs.
  /// Errors: UsageError unless 0 <= step and 0 <= rank < world_size.
  std::vector<std::int64_t> indices(std::int64_t step, const BatchPart& part) const;
  std::vector<std::int64_t> indices(std::int64_t step, const ProcessGroup& group) const;

  /// Steps of an epoch.
  std::int64_t steps_per_epoch() const { return steps_per_epoch_; }
  /// The epoch of a step.
  std::int64_t epoch_of(std::int64_t step) const { return step / steps_per_epoch_; }

 private:
  const GlobalBatchOptions options_;
  const std::int64_t steps_per_epoch_;
  mutable EpochOrder order_;  ///< of the epoch of the last call
};

}  // namespace lockstep
