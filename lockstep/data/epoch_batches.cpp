#include "lockstep/data/epoch_batches.h"

#include <algorithm>
#include <numeric>

#include "lockstep/data/internal/permutation.h"

namespace lockstep {

SampleRange part_of(const SampleRange& batch, const BatchPart& part) {
  const std::int64_t least = batch.size / part.world_size;
  const std::int64_t left_over = batch.size % part.world_size;
  return {.begin = batch.begin + part.rank * least + std::min<std::int64_t>(part.rank, left_over),
          .size = least + (part.rank < left_over ? 1 : 0)};
}

EpochBatches::EpochBatches(const EpochBatchOptions& options, const DataCursor& cursor,
                           const BatchPart& part)
    : options_(options), first_(cursor.consumed), part_(part) {
  const std::int64_t left = options.dataset_size - first_;
  const bool is_last_smaller = left % options.batch_size > 0;
  size_ = left / options.batch_size + (is_last_smaller && !options.drop_last ? 1 : 0);
  if (options.limit_batches > 0) {
    size_ = std::min(size_, std::max<std::int64_t>(options.limit_batches - cursor.batches, 0));
  }
  if (options.shuffle) {
    order_ = random_permutation(static_cast<std::size_t>(options.dataset_size),
                                cursor.seed + static_cast<std::uint64_t>(cursor.epoch));
  }
}

SampleRange EpochBatches::batch(std::int64_t number) const {
  const std::int64_t begin = first_ + number * options_.batch_size;
  return {.begin = begin, .size = std::min(options_.batch_size, options_.dataset_size - begin)};
}

BatchShare EpochBatches::share(std::int64_t number) const {
  const SampleRange whole = batch(number);
  SampleRange own = part_of(whole, part_);
  BatchShare share{.indices = {}, .samples = own.size};
  if (own.size == 0) own = {.begin = whole.begin, .size = 1};
  share.indices.resize(static_cast<std::size_t>(own.size));
  if (order_.empty()) {
    std::iota(share.indices.begin(), share.indices.end(), static_cast<std::size_t>(own.begin));
  } else {
    std::copy_n(order_.begin() + own.begin, own.size, share.indices.begin());
  }
  return share;
}

std::int64_t EpochBatches::samples_of(std::int64_t number, int rank) const {
  return part_of(batch(number), {.rank = rank, .world_size = part_.world_size}).size;
}

std::int64_t EpochBatches::consumed_after(std::int64_t number) const {
  const SampleRange whole = batch(number);
  return whole.begin + whole.size;
}

std::int64_t EpochBatches::even_from(std::int64_t number) const {
  if (options_.batch_size % part_.world_size != 0) return 0;
  return std::min((options_.dataset_size - first_) / options_.batch_size, size_) - number;
}

}  // namespace lockstep
