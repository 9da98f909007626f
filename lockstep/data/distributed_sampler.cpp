#include "lockstep/data/distributed_sampler.h"

#include <algorithm>
#include <numeric>

#include <ATen/ops/scalar_tensor.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/data/internal/permutation.h"
#include "lockstep/data/internal/shard.h"

namespace lockstep {
namespace {

Shard shard_of(const DistributedSamplerOptions& options) {
  Shard shard;
  shard.tail = options.drop_last ? Tail::kDrop : options.padding ? Tail::kPad : Tail::kKeep;
  if (options.num_replicas.has_value() != options.rank.has_value()) {
    throw UsageError("DistributedSampler: give both num_replicas and rank, or a group");
  }
  if (options.rank) {
    shard.num_replicas = *options.num_replicas;
    shard.rank = *options.rank;
  } else if (const ProcessGroup group = group_or_default(options.process_group)) {
    shard.num_replicas = group.world_size();
    shard.rank = group.rank();
  }
  if (shard.num_replicas < 1) {
    throw UsageError(concat("DistributedSampler: num_replicas is ", shard.num_replicas,
                            ", it must be positive"));
  }
  if (shard.rank < 0 || shard.rank >= shard.num_replicas) {
    throw UsageError(concat("DistributedSampler: rank ", shard.rank, " of ", shard.num_replicas,
                            " replicas, ranks are 0 to ", shard.num_replicas - 1));
  }
  return shard;
}

void write_number(torch::serialize::OutputArchive& archive, const char* key, std::uint64_t value) {
  archive.write(key, at::scalar_tensor(static_cast<std::int64_t>(value), at::kLong));
}

std::uint64_t read_number(torch::serialize::InputArchive& archive, const char* key) {
  at::Tensor value;
  archive.read(key, value);
  return static_cast<std::uint64_t>(value.item<std::int64_t>());
}

}  // namespace

DistributedSampler::DistributedSampler(std::size_t dataset_size,
                                       const DistributedSamplerOptions& options)
    : dataset_size_(dataset_size),
      shard_(std::make_shared<const Shard>(shard_of(options))),
      shuffle_(options.shuffle),
      seed_(options.seed) {
  reset();
}

void DistributedSampler::reset(std::optional<std::size_t> new_size) {
  dataset_size_ = new_size.value_or(dataset_size_);
  std::vector<std::size_t> order;
  if (shuffle_) {
    order = random_permutation(dataset_size_, seed_ + *epoch_);
  } else {
    order.resize(dataset_size_);
    std::iota(order.begin(), order.end(), std::size_t{0});
  }
  indices_ = shard_indices(order, *shard_);
  position_ = 0;
}

std::optional<std::vector<std::size_t>> DistributedSampler::next(std::size_t batch_size) {
  if (batch_size == 0) {
    throw UsageError("DistributedSampler::next: a batch of 0 samples; give the loader at least 1");
  }
  if (position_ == indices_.size()) return std::nullopt;
  const std::size_t end = position_ + std::min(batch_size, indices_.size() - position_);
  const auto first = indices_.begin();
  std::vector<std::size_t> batch(first + static_cast<std::ptrdiff_t>(position_),
                                 first + static_cast<std::ptrdiff_t>(end));
  position_ = end;
  return batch;
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  write_number(archive, "epoch", *epoch_);
  write_number(archive, "position", position_);
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  *epoch_ = read_number(archive, "epoch");
  reset();
  const std::uint64_t position = read_number(archive, "position");
  if (position > indices_.size()) {
    throw UsageError(concat("DistributedSampler: saved at sample ", position, " of an epoch, but ",
                            "this one has ", indices_.size(), ": another dataset or world size"));
  }
  position_ = position;
}

}  // namespace lockstep
