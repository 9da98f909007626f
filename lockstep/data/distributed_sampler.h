#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <torch/data/samplers/base.h>

#include "lockstep/comm/process_group.h"

namespace lockstep {

inline namespace internal {
struct Shard;
}

struct DistributedSamplerOptions {
  /// The ranks that share the dataset. Empty: the default group, else this one process.
  ProcessGroup process_group = {};
  /// Instead of the group's; both or neither.
  std::optional<int> num_replicas = std::nullopt;
  std::optional<int> rank = std::nullopt;
  /// A new order each epoch, from seed + epoch; otherwise the dataset's order.
  bool shuffle = true;
  std::uint64_t seed = 0;
  /// Leave out the samples that do not divide by the number of ranks.
  bool drop_last = false;
  /// Otherwise repeat some, so that all ranks have as many. Without padding every sample comes
  /// exactly once and some ranks have one fewer: for evaluation, where nothing in the loop waits
  /// for the other ranks.
  bool padding = true;
};

/// Gives each rank its part of a dataset: the indices that PyTorch's DistributedSampler gives for
/// the same size, ranks, seed and epoch.
///
///   DistributedSampler sampler(*dataset.size(), {.process_group = group, .seed = 1});
///   auto loader = torch::data::make_data_loader(std::move(dataset), sampler, 32);
///   for (int epoch = 0; epoch < epochs; ++epoch) {
///     sampler.set_epoch(epoch);
///     for (auto& batch : *loader) …
///   }
///
/// Copies share the epoch, so that set_epoch reaches the data loader's copy; each has its own
/// position. A new epoch takes effect at the next reset(), which the loader does at begin().
/// Threads: one at a time.
/// Errors: UsageError at construction unless 0 <= rank < num_replicas, or when only one is given.
class DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  explicit DistributedSampler(std::size_t dataset_size,
                              const DistributedSamplerOptions& options = {});

  /// Call before each epoch, with the same number on every rank: else epochs repeat their order.
  void set_epoch(std::uint64_t epoch) { *epoch_ = epoch; }
  std::uint64_t epoch() const { return *epoch_; }

  /// Samples an epoch has on this rank.
  std::size_t size() const { return indices_.size(); }

  /// Starts the epoch given to set_epoch, for a dataset of `new_size` if given.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;

  /// Up to `batch_size` further indices; nothing at the end of the epoch. Errors: UsageError for a
  /// batch of none.
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;

  /// The epoch and the position in it.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  std::size_t dataset_size_;
  std::shared_ptr<const Shard> shard_;
  bool shuffle_;
  std::uint64_t seed_;
  std::shared_ptr<std::uint64_t> epoch_ = std::make_shared<std::uint64_t>(0);
  std::vector<std::size_t> indices_;  ///< of the epoch under way
  std::size_t position_ = 0;          ///< in indices_
};

}  // namespace lockstep
