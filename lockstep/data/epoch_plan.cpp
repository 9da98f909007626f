#include "lockstep/data/epoch_plan.h"

#include <algorithm>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randperm.h>

#include "lockstep/base/internal/check.h"

namespace lockstep {

std::int64_t EpochPlanOptions::least_of_epoch() const {
  const std::int64_t most_dropped = tail == EpochTail::kDrop ? batch_size - 1 : 0;
  return std::max<std::int64_t>(dataset_size - most_dropped, 0);
}

EpochPlan::EpochPlan(const EpochPlanOptions& options, const DataCursor& from, int shards)
    : options_(options), from_(from), shards_(shards) {
  LOCKSTEP_ASSERT(options.batch_size > 0 && shards > 0);
  LOCKSTEP_ASSERT(0 <= from.consumed && from.consumed <= options.dataset_size);
  const std::int64_t left = options.dataset_size - from.consumed;
  const bool has_tail = left % options.batch_size > 0 && options.tail != EpochTail::kDrop;
  steps_ = left / options.batch_size + (has_tail ? 1 : 0);
  if (options.limit_batches > 0) {
    steps_ = std::min(steps_, std::max<std::int64_t>(options.limit_batches - from.batches, 0));
  }
}

SampleRange EpochPlan::step(std::int64_t number) const {
  const std::int64_t begin = from_.consumed + number * options_.batch_size;
  const std::int64_t left = options_.dataset_size - begin;
  return {.begin = begin,
          .size = options_.tail == EpochTail::kRepeat ? options_.batch_size
                                                      : std::min(options_.batch_size, left)};
}

SampleRange EpochPlan::share(std::int64_t number, int shard) const {
  const SampleRange whole = step(number);
  const std::int64_t least = whole.size / shards_;
  const std::int64_t larger = whole.size % shards_;  // The first so many have one more.
  return {.begin = whole.begin + shard * least + std::min<std::int64_t>(shard, larger),
          .size = least + (shard < larger ? 1 : 0)};
}

SampleRange EpochPlan::share_or_padding(std::int64_t number, int shard) const {
  const SampleRange own = share(number, shard);
  return own.size > 0 ? own : SampleRange{.begin = step(number).begin, .size = 1};
}

std::int64_t EpochPlan::even_from(std::int64_t number) const {
  if (options_.batch_size % shards_ != 0) return 0;
  const std::int64_t left = options_.dataset_size - from_.consumed;
  const std::int64_t full =
      options_.tail == EpochTail::kRepeat ? steps_ : std::min(left / options_.batch_size, steps_);
  return std::max<std::int64_t>(full - number, 0);
}

DataCursor EpochPlan::cursor_after(std::int64_t number) const {
  return {.seed = from_.seed,
          .epoch = from_.epoch,
          .consumed = std::min(step(number).end(), options_.dataset_size),
          .batches = from_.batches + number + 1};
}

DataCursor EpochPlan::end() const {
  return {.seed = from_.seed,
          .epoch = from_.epoch,
          .consumed = options_.dataset_size,
          .batches = from_.batches + steps_};
}

EpochOrder::EpochOrder(std::int64_t dataset_size, bool shuffle)
    : dataset_size_(dataset_size), is_shuffled_(shuffle) {}

void EpochOrder::set_epoch(std::uint64_t seed, std::int64_t epoch) {
  const std::pair wanted(seed, epoch);
  if (!is_shuffled_ || seed_and_epoch_ == wanted) return;
  order_ = at::randperm(dataset_size_,
                        at::detail::createCPUGenerator(seed + static_cast<std::uint64_t>(epoch)),
                        at::kLong);
  seed_and_epoch_ = wanted;
}

std::size_t EpochOrder::sample(std::int64_t position) const {
  const std::int64_t place = position < dataset_size_ ? position : position % dataset_size_;
  if (!is_shuffled_) return static_cast<std::size_t>(place);
  LOCKSTEP_ASSERT(seed_and_epoch_);
  return static_cast<std::size_t>(order_.const_data_ptr<std::int64_t>()[place]);
}

std::vector<std::size_t> EpochOrder::samples(const SampleRange& positions) const {
  std::vector<std::size_t> samples;
  samples.reserve(static_cast<std::size_t>(positions.size));
  for (std::int64_t position = positions.begin; position < positions.end(); ++position) {
    samples.push_back(sample(position));
  }
  return samples;
}

}  // namespace lockstep
