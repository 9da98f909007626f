#include "lockstep/data/global_batch.h"

#include <algorithm>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/data/internal/permutation.h"

namespace lockstep {
namespace {

std::int64_t count_steps(const GlobalBatchOptions& options) {
  if (options.batch_size < 1) {
    throw UsageError(
        concat("GlobalBatches: batch_size is ", options.batch_size, ", it must be positive"));
  }
  if (options.dataset_size < 1) {
    throw UsageError(
        concat("GlobalBatches: dataset_size is ", options.dataset_size, ", it must be positive"));
  }
  if (options.drop_last && options.dataset_size < options.batch_size) {
    throw UsageError(concat("GlobalBatches: drop_last leaves no batch of ", options.batch_size,
                            " in a dataset of ", options.dataset_size,
                            "; make the batch smaller, or keep the last one"));
  }
  const bool is_last_smaller = options.dataset_size % options.batch_size > 0;
  return options.dataset_size / options.batch_size +
         (is_last_smaller && !options.drop_last ? 1 : 0);
}

}  // namespace

GlobalBatches::GlobalBatches(const GlobalBatchOptions& options)
    : options_(options), steps_per_epoch_(count_steps(options)) {}

std::vector<std::int64_t> GlobalBatches::indices(std::int64_t step, const BatchPart& part) const {
  if (step < 0) {
    throw UsageError(concat("GlobalBatches::indices: step ", step, ", steps count from 0"));
  }
  if (part.rank < 0 || part.rank >= part.world_size) {
    throw UsageError(concat("GlobalBatches::indices: rank ", part.rank, " of ", part.world_size,
                            " ranks; give the rank and the world size of one group"));
  }
  const std::int64_t begin = step % steps_per_epoch_ * options_.batch_size;
  const SampleRange batch{.begin = begin,
                          .size = std::min(options_.batch_size, options_.dataset_size - begin)};
  const SampleRange range = part_of(batch, part);
  std::vector<std::int64_t> result(static_cast<std::size_t>(range.size));
  if (options_.shuffle) {
    const auto first = order_of(epoch_of(step)).begin() + range.begin;
    std::copy(first, first + range.size, result.begin());
  } else {
    std::iota(result.begin(), result.end(), range.begin);
  }
  return result;
}

std::vector<std::int64_t> GlobalBatches::indices(std::int64_t step,
                                                 const ProcessGroup& group) const {
  return indices(step, {.rank = group.rank(), .world_size = group.world_size()});
}

const std::vector<std::size_t>& GlobalBatches::order_of(std::int64_t epoch) const {
  if (epoch != ordered_epoch_) {
    order_ = random_permutation(static_cast<std::size_t>(options_.dataset_size),
                                options_.seed + static_cast<std::uint64_t>(epoch));
    ordered_epoch_ = epoch;
  }
  return order_;
}

}  // namespace lockstep
