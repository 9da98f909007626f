#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {

/// Which of the ranks that share a batch.
struct BatchPart {
  int rank = 0;
  int world_size = 1;
};

/// Positions in the order of an epoch.
struct SampleRange {
  std::int64_t begin = 0;
  std::int64_t size = 0;
  std::int64_t end() const { return begin + size; }
  bool operator==(const SampleRange&) const = default;
};

/// Where a training is in its data, all ranks together: enough to go on there with any number of
/// ranks.
struct DataCursor {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  /// Samples of the epoch's order that have been handed out.
  std::int64_t consumed = 0;
  /// Batches that held them, however large each was: what limit_batches counts.
  std::int64_t batches = 0;
  bool operator==(const DataCursor&) const = default;
};

/// What becomes of the last samples of an epoch if they do not fill a step.
enum class EpochTail {
  kKeep,    ///< the last step has fewer samples
  kDrop,    ///< they are left out
  kRepeat,  ///< the order starts over until the step is full: these samples count twice
};

struct EpochPlanOptions {
  /// Samples.
  std::int64_t dataset_size = 0;
  /// Samples per step, of all shards together.
  std::int64_t batch_size = 1;
  EpochTail tail = EpochTail::kKeep;
  /// The epoch ends after so many steps; 0: with its samples.
  std::int64_t limit_batches = 0;

  /// An epoch without limit_batches hands out at least so many samples, whatever the number of
  /// shards was on the way.
  std::int64_t least_of_epoch() const;
};

/// Which shard has which samples in each step that is left of an epoch. All that hands out samples
/// follows this one rule: DistributedSampler, GlobalBatches, DataLoader, and join() over a
/// DataLoader. A shard is the part of a step that is computed by itself: here one per rank.
///
/// 1. EpochOrder orders the samples of an epoch by seed and epoch. A position is a place in it.
/// 2. A step has the next `batch_size` positions behind the cursor. EpochTail says what the last
///    step has.
/// 3. Each shard has one block of a step, in the order of the shards. Their sizes differ by one at
///    most, and the first shards have the larger ones.
/// 4. With another number of shards or another batch_size, a new plan begins at the cursor behind
///    the last completed step. So what was handed out is not handed out again in the epoch, and
///    each of the other samples is, once.
///
/// A position is below dataset_size, but for the samples that EpochTail::kRepeat hands out again.
/// The plan is a function of its arguments: any step in constant time, without the order.
/// Threads: any.
class EpochPlan {
 public:
  /// Needs batch_size and shards of at least 1, and 0 <= from.consumed <= dataset_size.
  explicit EpochPlan(const EpochPlanOptions& options = {}, const DataCursor& from = {},
                     int shards = 1);

  /// That are left of the epoch. All that follows needs 0 <= number < steps(), 0 <= shard < shards.
  std::int64_t steps() const { return steps_; }

  /// The positions of all shards.
  SampleRange step(std::int64_t number) const;
  /// Those of a shard: empty where the step has fewer samples than there are shards.
  SampleRange share(std::int64_t number, int shard) const;
  /// Where the share is empty, the step's first position instead: a padding sample (weight 0), for
  /// loops in which each shard needs a batch.
  SampleRange share_or_padding(std::int64_t number, int shard) const;
  /// How many steps from this one on are of full size, with as many samples in each share.
  std::int64_t even_from(std::int64_t number) const;

  DataCursor cursor_after(std::int64_t number) const;
  /// Behind the last step: from there on no plan of this epoch has a step, whatever was left out.
  DataCursor end() const;

 private:
  EpochPlanOptions options_;
  DataCursor from_;
  int shards_;
  std::int64_t steps_;
};

/// The order of a dataset's samples in an epoch: the one that torch.randperm gives with a generator
/// of seed + epoch, as PyTorch's DistributedSampler does, or the dataset's own. The global random
/// state is not touched. Copies share the order of their epoch. Threads: one at a time.
class EpochOrder {
 public:
  explicit EpochOrder(std::int64_t dataset_size = 0, bool shuffle = false);

  /// Shuffles, unless the order is that of this seed and epoch already. Needed before the first
  /// sample() of a shuffled order.
  void set_epoch(std::uint64_t seed, std::int64_t epoch);

  /// The sample at a position; from dataset_size on the order starts over.
  std::size_t sample(std::int64_t position) const;
  std::vector<std::size_t> samples(const SampleRange& positions) const;
  bool is_shuffled() const { return is_shuffled_; }

 private:
  std::int64_t dataset_size_;
  bool is_shuffled_;
  std::optional<std::pair<std::uint64_t, std::int64_t>> seed_and_epoch_;
  at::Tensor order_;
};

}  // namespace lockstep
