#include "lockstep/data/global_batch.h"

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep {
namespace {

EpochPlan plan_of(const GlobalBatchOptions& options, int world_size) {
  return EpochPlan({.dataset_size = options.dataset_size,
                    .batch_size = options.batch_size,
                    .tail = options.drop_last ? EpochTail::kDrop : EpochTail::kKeep},
                   {}, world_size);
}

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
  return plan_of(options, 1).steps();
}

}  // namespace

GlobalBatches::GlobalBatches(const GlobalBatchOptions& options)
    : options_(options),
      steps_per_epoch_(count_steps(options)),
      order_(options.dataset_size, options.shuffle) {}

std::vector<std::int64_t> GlobalBatches::indices(std::int64_t step, const BatchPart& part) const {
  if (step < 0) {
    throw UsageError(concat("GlobalBatches::indices: step ", step, ", steps count from 0"));
  }
  if (part.rank < 0 || part.rank >= part.world_size) {
    throw UsageError(concat("GlobalBatches::indices: rank ", part.rank, " of ", part.world_size,
                            " ranks; give the rank and the world size of one group"));
  }
  order_.set_epoch(options_.seed, epoch_of(step));
  const auto samples =
      order_.samples(plan_of(options_, part.world_size).share(step % steps_per_epoch_, part.rank));
  return {samples.begin(), samples.end()};
}

std::vector<std::int64_t> GlobalBatches::indices(std::int64_t step,
                                                 const ProcessGroup& group) const {
  return indices(step, {.rank = group.rank(), .world_size = group.world_size()});
}

}  // namespace lockstep
