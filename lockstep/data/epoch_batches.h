#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

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
  bool operator==(const SampleRange&) const = default;
};

/// A rank's part of a batch. The parts of all ranks, one behind the other, are the batch; the first
/// ranks have one more where it does not divide. Needs 0 <= rank < world_size.
SampleRange part_of(const SampleRange& batch, const BatchPart& part);

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

struct EpochBatchOptions {
  /// Samples.
  std::int64_t dataset_size = 0;
  /// Samples a batch, those of all ranks together.
  std::int64_t batch_size = 1;
  /// A new order each epoch, from seed + epoch; otherwise the dataset's order.
  bool shuffle = true;
  /// Leave out what is left of an epoch when it fills no batch; otherwise its last batch is
  /// smaller.
  bool drop_last = false;
  /// The epoch ends after so many batches; 0: with its samples.
  std::int64_t limit_batches = 0;
};

/// A rank's share of one batch.
struct BatchShare {
  /// Of the dataset, at least one: where the batch has fewer samples than there are ranks, a rank
  /// without one gets the batch's first, which does not count.
  std::vector<std::size_t> indices;
  /// How many of them count, on this rank.
  std::int64_t samples = 0;
};

/// The batches that are left of an epoch, from a cursor on. Each sample that is left counts once,
/// on one rank; with any number of ranks the batches of one size are the same. Threads: any.
class EpochBatches {
 public:
  /// `cursor.consumed` at most dataset_size; batch_size and dataset_size at least 1.
  EpochBatches(const EpochBatchOptions& options, const DataCursor& cursor, const BatchPart& part);

  std::int64_t size() const { return size_; }

  /// Of the `number`th, 0 <= number < size().
  BatchShare share(std::int64_t number) const;
  /// The samples of it that count on `rank`.
  std::int64_t samples_of(std::int64_t number, int rank) const;
  /// And on all.
  std::int64_t batch_samples(std::int64_t number) const { return batch(number).size; }
  /// Samples of the epoch that have been handed out once it has been.
  std::int64_t consumed_after(std::int64_t number) const;
  /// How many from it on are of full size, with as many samples on each rank.
  std::int64_t even_from(std::int64_t number) const;

 private:
  SampleRange batch(std::int64_t number) const;

  EpochBatchOptions options_;
  std::int64_t first_;
  BatchPart part_;
  std::int64_t size_;
  std::vector<std::size_t> order_;  ///< empty: the dataset's
};

}  // namespace lockstep
