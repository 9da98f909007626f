#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {

/// One of the ranks that share a batch.
struct BatchPart {
  int rank = 0;
  int world_size = 1;
};

/// A range of positions in the order of an epoch.
struct SampleRange {
  std::int64_t begin = 0;
  std::int64_t size = 0;
  std::int64_t end() const { return begin + size; }
  bool operator==(const SampleRange&) const = default;
};

/// Position of a training run in its data, over all ranks: enough to resume on any number of ranks.
struct DataCursor {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  /// Samples of the epoch's order that were handed out.
  std::int64_t consumed = 0;
  /// Batches that held these samples, of any size; limit_batches limits this number.
  std::int64_t batches = 0;
  bool operator==(const DataCursor&) const = default;
};

/// What to do with the last samples of an epoch if they do not fill a step.
enum class EpochTail {
  kKeep,    ///< the last step has fewer samples
  kDrop,    ///< drop them
  kRepeat,  ///< fill the step with samples from the start of the order, which are used twice
};

/// Options of EpochPlan.
struct EpochPlanOptions {
  /// Samples of the dataset.
  std::int64_t dataset_size = 0;
  /// Samples per step, over all shards.
  std::int64_t batch_size = 1;
  EpochTail tail = EpochTail::kKeep;
  /// End the epoch after so many steps; 0: at its last sample.
  std::int64_t limit_batches = 0;

  /// Samples that an epoch without limit_batches hands out at least, for any numbers of shards.
  std::int64_t least_of_epoch() const;
};

/// Which shard has which samples, in each step that is left of an epoch. DistributedSampler,
/// GlobalBatches, DataLoader, and join() over a DataLoader all follow this rule. A shard is a part
/// of a step that is computed separately: here one per rank.
///
/// 1. EpochOrder orders the samples of an epoch by seed and epoch. A position is an index into this
///    order.
/// 2. A step has the next `batch_size` positions after the cursor. EpochTail decides the last step.
/// 3. Each shard has one block of a step, in the order of the shards. Block sizes differ by at most
///    one, and the first shards have the larger ones.
/// 4. With another number of shards or another batch_size, a new plan starts at the cursor after
///    the last completed step. So each sample of the epoch is handed out once.
///
/// A position is below dataset_size, except for the samples that EpochTail::kRepeat hands out
/// again. The plan is a pure function of its arguments; it computes any step in constant time,
/// without the order.
/// Threads: any.
class EpochPlan {
 public:
  /// Requires batch_size >= 1, shards >= 1 and 0 <= from.consumed <= dataset_size.
  explicit EpochPlan(const EpochPlanOptions& options = {}, const DataCursor& from = {},
                     int shards = 1);

  /// Steps left in the epoch. The functions below require 0 <= number < steps() and 0 <= shard <
  /// shards.
  std::int64_t steps() const { return steps_; }

  /// Positions of a step, over all shards.
  SampleRange step(std::int64_t number) const;
  /// Positions of a shard in a step; empty if the step has fewer samples than shards.
  SampleRange share(std::int64_t number, int shard) const;
  /// The same, but for an empty shard the step's first position: a padding sample (weight 0), for
  /// loops in which each shard needs a batch.
  SampleRange share_or_padding(std::int64_t number, int shard) const;
  /// How many steps, from this one on, are full and have equally many samples in each shard.
  std::int64_t even_from(std::int64_t number) const;

  /// The cursor after a step.
  DataCursor cursor_after(std::int64_t number) const;
  /// The cursor after the last step: any plan of this epoch from there has no steps, also if
  /// samples were dropped.
  DataCursor end() const;

 private:
  EpochPlanOptions options_;
  DataCursor from_;
  int shards_;
  std::int64_t steps_;
};

/// The order of a dataset's samples in an epoch: that of torch.randperm with a generator of seed +
/// epoch, as in PyTorch's DistributedSampler, or the dataset's own. Does not touch the global
/// random state. Copies share the order of their epoch.
/// Threads: one at a time.
class EpochOrder {
 public:
  explicit EpochOrder(std::int64_t dataset_size = 0, bool shuffle = false);

  /// Shuffles, unless the order is already that of this seed and epoch. Call it before the first
  /// sample() of a shuffled order.
  void set_epoch(std::uint64_t seed, std::int64_t epoch);

  /// The sample at a position; from dataset_size on the order starts over.
  std::size_t sample(std::int64_t position) const;
  /// The samples at a range of positions.
  std::vector<std::size_t> samples(const SampleRange& positions) const;
  /// Whether the order is shuffled.
  bool is_shuffled() const { return is_shuffled_; }

 private:
  std::int64_t dataset_size_;
  bool is_shuffled_;
  std::optional<std::pair<std::uint64_t, std::int64_t>> seed_and_epoch_;
  at::Tensor order_;
};

}  // namespace lockstep
