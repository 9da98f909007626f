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

/// Gives LibTorch's data loader the batches of the epoch that was begun at a position.
class EpochSampler : public torch::data::samplers::Sampler<> {
 public:
  explicit EpochSampler(std::shared_ptr<LoaderPosition> position)
      : position_(std::move(position)) {}

  std::optional<std::vector<std::size_t>> next(std::size_t) override {
    return position_->next_indices();
  }
  // The position begins epochs, and is what is saved.
  void reset(std::optional<std::size_t> = std::nullopt) override {}
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}

 private:
  std::shared_ptr<LoaderPosition> position_;
};

/// This rank's part of the batches of a dataset of torch::data:
///
///   DataLoader loader(dataset.map(torch::data::transforms::Stack<>()), {.batch_size = 32});
///   for (int epoch = 0; epoch < epochs; ++epoch) {
///     for (auto& batch : loader) …                            // each loop is one epoch
///   }
///
/// Follows EpochPlan: all ranks have as many batches, and each sample of an epoch counts once.
/// Where the last batch has fewer samples than there are ranks, the others get a padding sample
/// (weight 0). With logical_shards a rank is given its shards of a step one after the other, all of
/// them before the next step; ranks may have different numbers of them. So where parts differ, a mean over all samples weighs each rank's by
/// position()->samples(), as Accelerator::backward does.
///
/// In a loop cursor() is behind the batch at hand, else where the next loop begins; set_cursor()
/// lets the next loop go on there, with any number of ranks. After a loop that is left early the
/// next one is of the next epoch.
///
/// Threads: one at a time.
/// Lifetime: an iterator must not outlive the loader.
/// Errors: UsageError at construction for a batch of none and an empty dataset; what the dataset
/// throws.
template <class Dataset>
class DataLoader {
 public:
  using Batch = typename Dataset::BatchType;

  explicit DataLoader(Dataset dataset, const DataLoaderOptions& options = {})
      : position_(std::make_shared<LoaderPosition>(dataset.size(), options)),
        device_(options.device),
        dataset_(std::move(dataset)) {
    torch_options_.batch_size(static_cast<std::size_t>(options.batch_size))
        .workers(static_cast<std::size_t>(options.workers));
    if (options.timeout) torch_options_.timeout(*options.timeout);
  }

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
    void move_to(Other&) {}  // The program's own.

    DataLoader* loader_ = nullptr;
    std::optional<torch::data::Iterator<Batch>> inner_;
    std::shared_ptr<LoaderPosition> position_;
    std::shared_ptr<void> pass_;
    c10::Device device_ = at::kCPU;
  };

  /// Begins an epoch: the next one, or what is left of the cursor's.
  Iterator begin() {
    position_->visit_boundary(LoaderBoundary::kLoopBegins);
    position_->visit_next_shard();
    return Iterator(*this);
  }
  Iterator end() { return Iterator(); }
  /// Itself: loops over `*loader`, as LibTorch's loaders need, stay as they are.
  DataLoader& operator*() { return *this; }

  /// Batches of a whole epoch.
  std::int64_t size() const { return position_->batches_per_epoch(); }
  const DataCursor& cursor() const { return position_->cursor(); }
  /// Errors: UsageError for a place that this dataset does not have.
  void set_cursor(const DataCursor& cursor) { position_->set_cursor(cursor); }
  std::int64_t epoch() const { return cursor().epoch; }

  const Dataset& dataset() const { return dataset_; }
  /// What is known of the batch at which the loop is.
  const std::shared_ptr<LoaderPosition>& position() const { return position_; }

 private:
  // From the cursor on.
  torch::data::Iterator<Batch> begin_reading() {
    position_->begin_epoch();
    // LibTorch's loader cannot begin again while its workers have batches.
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
