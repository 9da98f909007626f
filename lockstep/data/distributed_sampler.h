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

/// Options of DistributedSampler.
struct DistributedSamplerOptions {
  /// The ranks that share the dataset. Empty: the default group, or this process alone without one.
  ProcessGroup process_group = {};
  /// Replace the group's size and rank; set both or neither.
  std::optional<int> num_replicas = std::nullopt;
  std::optional<int> rank = std::nullopt;
  /// Shuffle each epoch with seed + epoch. False: the dataset's order.
  bool shuffle = true;
  std::uint64_t seed = 0;
  /// Drop the last samples if the number of ranks does not divide the dataset's size.
  bool drop_last = false;
  /// Without drop_last: repeat samples until all ranks have equally many. False: use each sample
  /// once, and some ranks have one fewer; for evaluations without collectives in the loop.
  bool padding = true;
};

/// Divides a dataset's samples among ranks: returns the indices of PyTorch's DistributedSampler for
/// the same size, ranks, seed and epoch. Follows EpochPlan with one sample per rank and step.
///
/// ```cpp
/// DistributedSampler sampler(*dataset.size(), {.process_group = group, .seed = 1});
/// auto loader = torch::data::make_data_loader(std::move(dataset), sampler, 32);
/// for (int epoch = 0; epoch < epochs; ++epoch) {
///   sampler.set_epoch(epoch);
///   for (auto& batch : *loader) …
/// }
/// ```
///
/// Without a loader call reset() after set_epoch(), then next() until it returns nullopt:
///
/// ```cpp
/// sampler.set_epoch(epoch);
/// sampler.reset();
/// while (const auto indices = sampler.next(32)) …
/// ```
///
/// Copies share the epoch, so set_epoch() reaches the data loader's copy; each copy has its own
/// position. A new epoch takes effect at the next reset(), which the loader calls in begin().
///
/// Threads: one at a time.
/// Errors: UsageError from the constructor unless 0 <= rank < num_replicas, or if only one of them
/// is set.
class DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  explicit DistributedSampler(std::size_t dataset_size,
                              const DistributedSamplerOptions& options = {});

  /// Sets the epoch of the next reset(); call it before each epoch, with the same number on all
  /// ranks. Otherwise all epochs have the same order. A data loader calls reset() in begin().
  void set_epoch(std::uint64_t epoch) { *epoch_ = epoch; }
  /// The number given to set_epoch(); at first 0.
  std::uint64_t epoch() const { return *epoch_; }

  /// Samples per epoch on this rank.
  std::size_t size() const { return static_cast<std::size_t>(size_); }

  /// Starts the epoch of set_epoch(), for a dataset of `new_size` if given.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;

  /// Up to `batch_size` further indices; nullopt at the end of the epoch.
  /// Errors: UsageError for a batch size of 0.
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;

  /// Saves the epoch and the position in it.
  void save(torch::serialize::OutputArchive& archive) const override;
  /// Resumes at the saved position. With another number of ranks, the rest of the epoch, up to the
  /// next reset(), has the samples that the saving ranks had not yet returned; all ranks must then
  /// load the same archive, that of rank 0.
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
  std::int64_t consumed_ = 0;  ///< samples that another number of ranks has returned
  EpochPlan plan_;             ///< of the rest of the epoch
  std::int64_t size_ = 0;      ///< this rank's samples in plan_
  std::int64_t position_ = 0;  ///< among size_
};

}  // namespace lockstep
