#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <torch/data/samplers/base.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/data/epoch_plan.h"

namespace lockstep {

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
/// the same size, ranks, seed and epoch. Follows EpochPlan with one sample per rank and step.
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
  std::size_t size() const { return static_cast<std::size_t>(size_); }

  /// Starts the epoch given to set_epoch, for a dataset of `new_size` if given.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;

  /// Up to `batch_size` further indices; nothing at the end of the epoch. Errors: UsageError for a
  /// batch of none.
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;

  /// The epoch and the position in it.
  void save(torch::serialize::OutputArchive& archive) const override;
  /// Goes on there. With another number of ranks: behind the samples that those of then were given,
  /// until the next reset(). All ranks must load the same archive then, that of rank 0.
  /// Errors: UsageError for a position that this epoch does not have.
  void load(torch::serialize::InputArchive& archive) override;

 private:
  EpochPlan plan_behind(std::int64_t consumed, int num_replicas) const;
  void begin_behind(std::int64_t consumed);

  BatchPart part_;
  EpochTail tail_;
  std::int64_t dataset_size_;
  std::uint64_t seed_;
  std::shared_ptr<std::uint64_t> epoch_ = std::make_shared<std::uint64_t>(0);
  EpochOrder order_;
  std::int64_t consumed_ = 0;  ///< of the epoch, by another number of ranks
  EpochPlan plan_;             ///< of the rest of it
  std::int64_t size_ = 0;      ///< this rank's samples in plan_
  std::int64_t position_ = 0;  ///< of them
};

}  // namespace lockstep
