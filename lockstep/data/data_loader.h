#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <c10/core/Device.h>
#include <torch/data/dataloader.h>
#include <torch/data/example.h>
#include <torch/data/samplers/base.h>

#include "lockstep/data/loader_position.h"

namespace lockstep {

inline namespace internal {

/// Sampler for LibTorch's data loader: returns the batches of the epoch that a LoaderPosition has
/// begun.
class EpochSampler : public torch::data::samplers::Sampler<> {
 public:
  explicit EpochSampler(std::shared_ptr<LoaderPosition> position)
      : position_(std::move(position)) {}

  /// The sample indices of the next batch; nullopt at the end of the epoch. The position decides
  /// the batch's size.
  std::optional<std::vector<std::size_t>> next(std::size_t) override {
    return position_->next_indices();
  }
  /// Does nothing: the position begins epochs.
  void reset(std::optional<std::size_t> = std::nullopt) override {}
  /// Does nothing: save the position.
  void save(torch::serialize::OutputArchive&) const override {}
  /// Does nothing.
  void load(torch::serialize::InputArchive&) override {}

 private:
  std::shared_ptr<LoaderPosition> position_;
};

}  // namespace internal

/// Loads this rank's batches of a dataset of torch::data. All ranks get equally many batches, and
/// each sample is used once per epoch; EpochPlan has the rule.
///
/// ```cpp
/// DataLoader loader(dataset.map(torch::data::transforms::Stack<>()), {.batch_size = 32});
/// for (int epoch = 0; epoch < epochs; ++epoch) {
///   for (auto& batch : loader) …  // each loop is one epoch
/// }
/// ```
///
/// If the last batch has fewer samples than ranks, some ranks get a padding sample (weight 0). With
/// logical_shards a rank gets its shards of a step one after the other, and ranks may have
/// different numbers of shards. A mean over all samples must therefore weight each rank's mean by
/// position()->samples(), as Accelerator::backward does.
///
/// In a loop cursor() is after the current batch; outside, where the next loop begins. set_cursor()
/// makes the next loop begin there, on any number of ranks. After a loop that was left early, the
/// next loop is the next epoch.
///
/// Threads: one at a time.
/// Lifetime: an iterator must not outlive the loader.
/// Errors: UsageError from the constructor for a batch size below 1 and for an empty dataset; what
/// the dataset throws.
template <class Dataset>
class DataLoader {
 public:
  /// The batch that the dataset returns.
  using Batch = typename Dataset::BatchType;

  explicit DataLoader(Dataset dataset, const DataLoaderOptions& options = {})
      : position_(std::make_shared<LoaderPosition>(dataset.size(), options)),
        device_(options.device),
        dataset_(std::move(dataset)) {
    torch_options_.batch_size(static_cast<std::size_t>(options.batch_size))
        .workers(static_cast<std::size_t>(options.workers));
    if (options.timeout) torch_options_.timeout(*options.timeout);
  }

  /// Input iterator over the batches of one epoch; moves them to the loader's device.
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    using pointer = Batch*;
    using reference = Batch&;

    Batch& operator*() { return **inner_; }
    Batch* operator->() { return &**inner_; }
    Iterator& operator++() {
      const bool begins_again = !position_->is_within_step() && visit_boundary();
      position_->visit_next_shard();
      if (begins_again) {
        inner_.emplace(loader_->begin_reading());
      } else {
        ++*inner_;
      }
      arrive();
      return *this;
    }
    bool operator==(const Iterator& other) const { return is_at_end() == other.is_at_end(); }

   private:
    friend class DataLoader;
    Iterator() = default;
    explicit Iterator(DataLoader& loader)
        : loader_(&loader),
          inner_(loader.begin_reading()),
          position_(loader.position_),
          pass_(position_->begin_pass()),
          device_(loader.device_) {
      arrive();
    }
    bool visit_boundary() {
      const bool is_last = position_->has_batch() && position_->is_last();
      return position_->visit_boundary(is_last ? LoaderBoundary::kLoopEnds
                                               : LoaderBoundary::kNextBatch);
    }
    bool is_at_end() const { return !position_ || !position_->has_batch(); }
    void arrive() {
      position_->advance();
      if (position_->has_batch() && !device_.is_cpu()) move_to(**inner_);
    }
    template <class Data, class Target>
    void move_to(torch::data::Example<Data, Target>& example) {
      move_to(example.data);
      move_to(example.target);
    }
    void move_to(at::Tensor& tensor) { tensor = tensor.to(device_); }
    template <class Other>
    void move_to(Other&) {}  // Other batches stay where they are.

    DataLoader* loader_ = nullptr;
    std::optional<torch::data::Iterator<Batch>> inner_;
    std::shared_ptr<LoaderPosition> position_;
    std::shared_ptr<void> pass_;
    c10::Device device_ = at::kCPU;
  };

  /// Begins an epoch: the next one, or the rest of the cursor's.
  Iterator begin() {
    position_->visit_boundary(LoaderBoundary::kLoopBegins);
    position_->visit_next_shard();
    return Iterator(*this);
  }
  Iterator end() { return Iterator(); }
  /// The loader itself, so that code with `*loader`, as LibTorch's loaders need, compiles
  /// unchanged.
  DataLoader& operator*() { return *this; }

  /// Batches of a whole epoch.
  std::int64_t size() const { return position_->batches_per_epoch(); }
  /// The position in the data, over all ranks.
  const DataCursor& cursor() const { return position_->cursor(); }
  /// Moves to a position.
  /// Errors: UsageError for a position that this dataset does not have.
  void set_cursor(const DataCursor& cursor) { position_->set_cursor(cursor); }
  /// The cursor's epoch.
  std::int64_t epoch() const { return cursor().epoch; }

  /// The dataset.
  const Dataset& dataset() const { return dataset_; }
  /// What is known of the current batch.
  const std::shared_ptr<LoaderPosition>& position() const { return position_; }

 private:
  // Loads from the cursor on.
  torch::data::Iterator<Batch> begin_reading() {
    position_->begin_epoch();
    // LibTorch's loader cannot restart while its workers hold batches.
    if (torch_loader_ && torch_options_.workers() > 0) torch_loader_.reset();
    if (!torch_loader_) {
      torch_loader_ =
          torch::data::make_data_loader(dataset_, EpochSampler(position_), torch_options_);
    }
    return torch_loader_->begin();
  }

  std::shared_ptr<LoaderPosition> position_;
  c10::Device device_;
  Dataset dataset_;
  torch::data::DataLoaderOptions torch_options_;
  std::unique_ptr<torch::data::StatelessDataLoader<Dataset, EpochSampler>> torch_loader_;
};

}  // namespace lockstep
