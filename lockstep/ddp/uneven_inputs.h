#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "lockstep/base/error.h"
#include "lockstep/data/loader_position.h"
#include "lockstep/ddp/replica.h"

namespace lockstep {

/// What a batch without samples is: batches whose samples lie along dimension 0 are tensors,
/// torch::data::Examples, and pairs, tuples and arrays of such; a vector is a list of samples.
template <class Batch>
constexpr bool knows_samples_of() {
  if constexpr (std::is_base_of_v<at::Tensor, Batch>) {
    return true;
  } else if constexpr (requires(Batch & batch) {
                         batch.data;
                         batch.target;
                       }) {
    return knows_samples_of<decltype(Batch::data)>() && knows_samples_of<decltype(Batch::target)>();
  } else if constexpr (requires(Batch & batch) { batch.data; }) {
    return knows_samples_of<decltype(Batch::data)>();
  } else if constexpr (requires { std::tuple_size<Batch>::value; }) {
    return []<std::size_t... i>(std::index_sequence<i...>) {
      return (knows_samples_of<std::tuple_element_t<i, Batch>>() && ...);
    }
    (std::make_index_sequence<std::tuple_size_v<Batch>>());
  } else {
    return requires(Batch & batch) {
      batch.clear();
    };
  }
}

/// Calls action(tensor) for each tensor of the batch, and clear(vector) for each list of samples.
/// For types of which knows_samples_of is true.
template <class Batch, class Action, class Clear>
void for_each_batch_tensor(Batch& batch, const Action& action, const Clear& clear) {
  const auto visit = [&](auto& part) { for_each_batch_tensor(part, action, clear); };
  using Plain = std::remove_const_t<Batch>;
  if constexpr (std::is_base_of_v<at::Tensor, Plain>) {
    action(batch);
  } else if constexpr (requires { batch.data; }) {
    visit(batch.data);
    if constexpr (requires { batch.target; }) visit(batch.target);
  } else if constexpr (requires { std::tuple_size<Plain>::value; }) {
    std::apply([&](auto&... parts) { (visit(parts), ...); }, batch);
  } else {
    clear(batch);
  }
}

/// Of one of a batch's tensors.
struct BatchTensorShape {
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> sizes = {};
};

template <class Batch>
std::vector<BatchTensorShape> shapes_of_batch(const Batch& batch) {
  std::vector<BatchTensorShape> shapes;
  for_each_batch_tensor(
      batch,
      [&](const at::Tensor& tensor) {
        shapes.push_back({tensor.scalar_type(), tensor.sizes().vec()});
      },
      [](const auto&) {});
  return shapes;
}

/// A batch without samples, of tensors like those with these shapes.
template <class Batch>
Batch empty_batch(const std::vector<BatchTensorShape>& shapes) {
  Batch batch{};
  std::size_t next = 0;
  for_each_batch_tensor(
      batch,
      [&](at::Tensor& tensor) {
        auto sizes = shapes.at(next).sizes;
        if (!sizes.empty()) sizes[0] = 0;
        tensor = at::empty(sizes, shapes.at(next++).dtype);
      },
      [](auto& samples) { samples.clear(); });
  return batch;
}

/// How ranks with different numbers of batches agree on how many to run: each tells, with the
/// gradients of a step, how many batches it has for the next one, so that a step costs no round
/// trip. All ranks make the same calls.
/// Threads: the training thread. Lifetime: the replica must outlive it. Errors: as Work::wait.
class BatchVote {
 public:
  /// A step takes up to `batches_per_step`.
  BatchVote(Replica& replica, int batches_per_step);
  ~BatchVote();
  BatchVote(const BatchVote&) = delete;
  BatchVote& operator=(const BatchVote&) = delete;

  /// Before the first step: the most that any rank has.
  int ask(int available);
  /// Whether all ranks had a batch when they were asked.
  bool all_have() const { return all_have_; }

  /// Of a step's batches, before each: a pass of one that is not this rank's own adds nothing to
  /// gradients.
  void begin_batch(bool has_data);

  /// Goes with the next exchange of gradients. `has_data`: whether this rank has had a batch in
  /// this step; its gradients count only then.
  void cast(bool has_data, int available);
  /// After that exchange: the most that any rank has for the next step. Where no gradients were
  /// exchanged it asks now.
  int count();
  /// In place of count(), where the number is known.
  void withdraw();

  /// Of the first batch of the first rank that has one, on all ranks; for this rank's where it has
  /// one. Collective.
  std::vector<BatchTensorShape> agree_on_shapes(const std::vector<BatchTensorShape>& own) const;

 private:
  Replica& replica_;
  int cast_ = 0;
  bool all_have_ = true;
};

template <class Batch>
struct UnevenInputsOptions {
  /// Gradients are exchanged after every so many batches; see UnevenInputs::accumulate.
  int gradient_accumulation_steps = 1;
  /// A batch without samples, for batches of which knows_samples_of is false.
  std::function<Batch()> empty = {};
};

/// The batches of this rank, followed by batches without samples until no rank has any: ranks with
/// different numbers of batches, none included, run the same steps. An empty batch goes through the
/// model as others do, so that every exchange that is part of the model takes place: buffers,
/// SyncBatchNorm, gradients. It has no part in the mean: what its backward pass brings counts
/// nothing, be it NaN or that of a term of the parameters alone, and of the ranks' means only those
/// with a batch are averaged; by their weights, which are taken for 0 then, where passes have some.
/// forward must take 0 samples: x.view({x.size(0), -1}) throws for them, x.flatten(1) does not.
///
///   auto batches = model.join(*loader);
///   for (auto& batch : batches) {
///     optimizer.zero_grad();
///     auto loss = torch::mse_loss(model(batch.data), batch.target);   // NaN for an empty batch
///     model.backward(loss, {.weight = static_cast<double>(batch.data.size(0))});
///     optimizer.step();
///   }
///
/// Whether there is a next step is told with the gradients of the one before: it costs no message.
/// Batches are read one step ahead. A DataLoader needs neither: which rank has a batch follows from
/// its EpochPlan. In place of a padding sample the rank gets an empty batch.
///
/// Threads: the training thread.
/// Lifetime: model and loader must outlive it.
/// Errors: UsageError for a second pass; else as Work::wait.
template <class Batch>
class UnevenInputs {
 public:
  /// `next`: the next batch of this rank, nothing at the end. `planned`: where the loader is of
  /// which the batches are; null where only each rank knows how many it has.
  UnevenInputs(Replica& replica, std::function<std::optional<Batch>()> next,
               UnevenInputsOptions<Batch> options,
               std::shared_ptr<const LoaderPosition> planned = nullptr)
      : replica_(replica),
        next_(std::move(next)),
        options_(std::move(options)),
        // Where the model's other ranks have loaders of their own, only each knows its batches.
        planned_(planned && planned->world_size() == replica.process_group().world_size()
                     ? std::move(planned)
                     : nullptr),
        vote_(replica, options_.gradient_accumulation_steps) {
    if (!knows_samples_of<Batch>() && !options_.empty) {
      throw UsageError(
          "DistributedDataParallel::join: what a batch of this type is without samples is not "
          "known; say it by the option `empty`");
    }
  }

  class Iterator {
   public:
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    explicit Iterator(UnevenInputs& inputs) : inputs_(&inputs) {}
    Batch& operator*() const { return *inputs_->current_; }
    Iterator& operator++() {
      inputs_->advance();
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return !inputs_->current_.has_value(); }

   private:
    UnevenInputs* inputs_;
  };

  /// Once: another pass needs another join().
  Iterator begin() {
    if (has_begun_) {
      throw UsageError(
          "DistributedDataParallel::join: its batches were gone through before; call join() again "
          "for another pass");
    }
    has_begun_ = true;
    read_ahead();
    steps_batches_ = planned_ ? planned_batches() : vote_.ask(static_cast<int>(ahead_.size()));
    if (steps_batches_ > 0 && !vote_.all_have() && !options_.empty) agree_on_shapes();
    if (steps_batches_ > 0) start_step();
    return Iterator(*this);
  }
  std::default_sentinel_t end() const { return {}; }

  /// Whether the batch at hand is one of this rank's.
  bool has_data() const { return has_data_; }

  /// Of a step: the one after which gradients are exchanged and the optimizer has its turn.
  bool is_last() const { return index_ + 1 == steps_batches_; }
  /// Keeps gradients local while it lives, but for the last batch of a step.
  NoSyncGuard accumulate() { return NoSyncGuard(replica_, !is_last()); }

 private:
  // With a plan only the batch at hand, so that the position is its.
  void read_ahead() {
    const int most = planned_ ? 1 : options_.gradient_accumulation_steps;
    while (!at_end_ && static_cast<int>(ahead_.size()) < most) {
      std::optional<Batch> batch = next_();
      at_end_ = !batch.has_value();
      if (batch) ahead_.push_back(std::move(*batch));
    }
  }

  // Of the step that begins with the batch that was read: the same on all ranks.
  int planned_batches() const {
    if (!planned_->has_batch()) return 0;
    return static_cast<int>(
        std::min<std::int64_t>(options_.gradient_accumulation_steps, planned_->batches_left()));
  }

  int next_step_batches() {
    if (!planned_) return vote_.count();
    vote_.withdraw();
    read_ahead();
    return planned_batches();
  }

  void agree_on_shapes() {
    if constexpr (knows_samples_of<Batch>()) {
      shapes_ = vote_.agree_on_shapes(ahead_.empty() ? std::vector<BatchTensorShape>()
                                                     : shapes_of_batch(ahead_.front()));
    }
  }

  void start_step() {
    index_ = 0;
    step_has_data_ = false;
    take_batch();
  }

  void take_batch() {
    if (planned_) read_ahead();
    has_data_ = !ahead_.empty();
    if (has_data_) {
      current_ = std::move(ahead_.front());
      ahead_.pop_front();
      if constexpr (knows_samples_of<Batch>()) {
        if (shapes_.empty()) shapes_ = shapes_of_batch(*current_);
      }
      if (planned_ && planned_->samples() == 0) has_data_ = false;  // It is a padding sample.
    }
    if (has_data_) {
      step_has_data_ = true;
    } else if (options_.empty) {
      current_ = options_.empty();
    } else if constexpr (knows_samples_of<Batch>()) {
      current_ = empty_batch<Batch>(shapes_);
    }
    vote_.begin_batch(has_data_);
    if (!is_last()) return;
    if (!planned_) read_ahead();
    vote_.cast(step_has_data_, static_cast<int>(ahead_.size()));
  }

  void advance() {
    if (!is_last()) {
      ++index_;
      return take_batch();
    }
    steps_batches_ = next_step_batches();
    if (steps_batches_ > 0) return start_step();
    current_.reset();
  }

  Replica& replica_;
  std::function<std::optional<Batch>()> next_;
  UnevenInputsOptions<Batch> options_;
  std::shared_ptr<const LoaderPosition> planned_;
  BatchVote vote_;
  std::deque<Batch> ahead_;
  bool has_begun_ = false;
  bool at_end_ = false;  // of this rank's batches
  std::vector<BatchTensorShape> shapes_;
  std::optional<Batch> current_;
  bool has_data_ = false;
  int steps_batches_ = 0;  // how many the step at hand has
  int index_ = 0;          // among them
  bool step_has_data_ = false;
};

}  // namespace lockstep
