#include "lockstep/data/distributed_sampler.h"

#include <algorithm>

#include <ATen/ops/scalar_tensor.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/init_process_group.h"

namespace lockstep {
namespace {

EpochTail tail_of(const DistributedSamplerOptions& options) {
  if (options.drop_last) return EpochTail::kDrop;
  return options.padding ? EpochTail::kRepeat : EpochTail::kKeep;
}

BatchPart part_of(const DistributedSamplerOptions& options) {
  BatchPart part;
  if (options.num_replicas.has_value() != options.rank.has_value()) {
    throw UsageError("DistributedSampler: give both num_replicas and rank, or a group");
  }
  if (options.rank) {
    part = {.rank = *options.rank, .world_size = *options.num_replicas};
  } else if (const ProcessGroup group = group_or_default(options.process_group)) {
    part = {.rank = group.rank(), .world_size = group.world_size()};
  }
  if (part.world_size < 1) {
    throw UsageError(
        concat("DistributedSampler: num_replicas is ", part.world_size, ", it must be positive"));
  }
  if (part.rank < 0 || part.rank >= part.world_size) {
    throw UsageError(concat("DistributedSampler: rank ", part.rank, " of ", part.world_size,
                            " replicas, ranks are 0 to ", part.world_size - 1));
  }
  return part;
}

void write_number(torch::serialize::OutputArchive& archive, const char* key, std::int64_t value) {
  archive.write(key, at::scalar_tensor(value, at::kLong));
}

// Nothing: an archive of an earlier version lacks it.
std::optional<std::int64_t> read_number(torch::serialize::InputArchive& archive, const char* key) {
  at::Tensor value;
  if (!archive.try_read(key, value)) return std::nullopt;
  return value.item<std::int64_t>();
}

std::int64_t read_needed(torch::serialize::InputArchive& archive, const char* key) {
  if (const auto value = read_number(archive, key)) return *value;
  throw UsageError(concat("DistributedSampler: the archive has no '", key,
                          "'; load what DistributedSampler::save wrote"));
}

}  // namespace

DistributedSampler::DistributedSampler(std::size_t dataset_size,
                                       const DistributedSamplerOptions& options)
    : part_(part_of(options)),
      tail_(tail_of(options)),
      dataset_size_(static_cast<std::int64_t>(dataset_size)),
      seed_(options.seed),
      order_(dataset_size_, options.shuffle) {
  reset();
}

EpochPlan DistributedSampler::plan_behind(std::int64_t consumed, int num_replicas) const {
  return EpochPlan(
      {.dataset_size = dataset_size_, .batch_size = num_replicas, .tail = tail_},
      {.seed = seed_, .epoch = static_cast<std::int64_t>(*epoch_), .consumed = consumed},
      num_replicas);
}

void DistributedSampler::begin_behind(std::int64_t consumed) {
  consumed_ = consumed;
  plan_ = plan_behind(consumed, part_.world_size);
  size_ = plan_.steps();
  if (size_ > 0 && plan_.share(size_ - 1, part_.rank).size == 0) --size_;
  order_.set_epoch(seed_, static_cast<std::int64_t>(*epoch_));
  position_ = 0;
}

void DistributedSampler::reset(std::optional<std::size_t> new_size) {
  if (new_size && static_cast<std::int64_t>(*new_size) != dataset_size_) {
    dataset_size_ = static_cast<std::int64_t>(*new_size);
    order_ = EpochOrder(dataset_size_, order_.is_shuffled());
  }
  begin_behind(0);
}

std::optional<std::vector<std::size_t>> DistributedSampler::next(std::size_t batch_size) {
  if (batch_size == 0) {
    throw UsageError("DistributedSampler::next: a batch of 0 samples; give the loader at least 1");
  }
  if (position_ == size_) return std::nullopt;
  std::vector<std::size_t> batch(std::min(batch_size, static_cast<std::size_t>(size_ - position_)));
  for (std::size_t& sample : batch) {
    sample = order_.sample(plan_.share(position_++, part_.rank).begin);
  }
  return batch;
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  write_number(archive, "epoch", static_cast<std::int64_t>(*epoch_));
  write_number(archive, "position", position_);
  write_number(archive, "num_replicas", part_.world_size);
  write_number(archive, "consumed", consumed_);
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  const std::int64_t epoch = read_needed(archive, "epoch");
  const std::int64_t position = read_needed(archive, "position");
  const std::int64_t consumed = read_number(archive, "consumed").value_or(0);
  const auto num_replicas =
      static_cast<int>(read_number(archive, "num_replicas").value_or(part_.world_size));
  const bool fits = num_replicas > 0 && 0 <= consumed && consumed <= dataset_size_;
  const EpochPlan saved = fits ? plan_behind(consumed, num_replicas) : EpochPlan();
  if (!fits || position < 0 || position > saved.steps()) {
    throw UsageError(concat("DistributedSampler: saved at sample ", position,
                            ", but the epoch has ", saved.steps(),
                            "; give the dataset and world size that were saved"));
  }
  *epoch_ = static_cast<std::uint64_t>(epoch);
  if (num_replicas == part_.world_size) {
    begin_behind(consumed);
    position_ = std::min(position, size_);
  } else if (position == saved.steps()) {
    begin_behind(saved.end().consumed);
  } else {
    begin_behind(position > 0 ? saved.cursor_after(position - 1).consumed : consumed);
  }
}

}  // namespace lockstep
