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

inline namespace internal {

/// Whether a batch of this type without samples can be made: tensors with samples along dimension
/// 0, torch::data::Examples, pairs, tuples and arrays of these; and vectors, as lists of samples.
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
/// For types with knows_samples_of.
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

/// Dtype and sizes of one tensor of a batch.
struct BatchTensorShape {
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> sizes = {};
};

/// Dtypes and sizes of all tensors of a batch, in the order of for_each_batch_tensor.
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

/// Makes a batch without samples: tensors of these dtypes and sizes, with size 0 in dimension 0.
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

/// Finds how many batches the next step has, if ranks have different numbers of them: each rank
/// sends the number it has left with the gradients of a step, so a step costs no extra message. All
/// ranks make the same calls.
/// Threads: call from the training thread.
/// Lifetime: the replica must outlive it.
/// Errors: see Work::wait.
class BatchVote {
 public:
  /// A step has at most `batches_per_step` batches.
  BatchVote(Replica& replica, int batches_per_step);
  ~BatchVote();
  BatchVote(const BatchVote&) = delete;
  BatchVote& operator=(const BatchVote&) = delete;

  /// Before the first step: the maximum of `available` over all ranks. Collective.
  int ask(int available);
  /// Whether `available` was above 0 on all ranks in ask().
  bool all_have() const { return all_have_; }

  /// Call before each batch of a step. Without data, its backward pass adds nothing to gradients.
  void begin_batch(bool has_data);

  /// Sends `available` with the next exchange of gradients. `has_data`: whether this rank had a
  /// batch in this step; else its gradients are left out of the mean.
  void cast(bool has_data, int available);
  /// After that exchange: the maximum of `available` over all ranks. If no gradients were
  /// exchanged, it calls ask().
  int count();
  /// Call it in place of count() if the number is known.
  void withdraw();

  /// Returns `own`; if it is empty, the shapes of the lowest rank that has some. Collective.
  std::vector<BatchTensorShape> agree_on_shapes(const std::vector<BatchTensorShape>& own) const;

 private:
  Replica& replica_;
  int cast_ = 0;
  bool all_have_ = true;
};

}  // namespace internal

/// Options of DistributedDataParallel::join.
template <class Batch>
struct UnevenInputsOptions {
  /// Number of batches per exchange of gradients; see UnevenInputs::accumulate.
  int gradient_accumulation_steps = 1;
  /// Makes a batch without samples, for batches without knows_samples_of.
  std::function<Batch()> empty = {};
};

/// This rank's batches, followed by empty batches until no rank has any: ranks with different
/// numbers of batches, or none, run the same steps. An empty batch passes through the model like
/// others, so all communication of the model takes place: buffers, SyncBatchNorm, gradients. It is
/// left out of the mean: its backward pass adds nothing, even NaN or terms that depend only on
/// parameters. Only gradients of ranks with a batch are averaged; weighted backward uses weight 0
/// for it. forward must accept 0 samples: x.flatten(1) does, x.view({x.size(0), -1}) throws.
///
///     auto batches = model.join(*loader);
///     for (auto& batch : batches) {
///       optimizer.zero_grad();
///       auto loss = torch::mse_loss(model(batch.data), batch.target);   // NaN for an empty batch
///       model.backward(loss, {.weight = static_cast<double>(batch.data.size(0))});
///       optimizer.step();
///     }
///
/// Ranks send whether they have another batch with the gradients of the step before, without an
/// extra message, and read batches one step ahead. A DataLoader needs neither: its EpochPlan says
/// which rank has a batch. In place of a padding sample the rank gets an empty batch.
///
/// Threads: call from the training thread.
/// Lifetime: model and loader must outlive it.
/// Errors: UsageError for a second pass; else see Work::wait.
template <class Batch>
class UnevenInputs {
 public:
  /// `next`: returns this rank's next batch, nothing at the end. `planned`: position of the loader
  /// whose batches they are; null if only each rank knows its number of batches.
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
          "DistributedDataParallel::join: cannot make an empty batch of this type; set the option "
          "`empty`");
    }
  }

  /// Input iterator over the batches, own and empty ones.
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

  /// Starts the pass over the batches. Only once: call join() again for another pass.
  Iterator begin() {
    if (has_begun_) {
      throw UsageError(
          "DistributedDataParallel::join: the batches were already iterated; call join() again for "
          "another pass");
    }
    has_begun_ = true;
    read_ahead();
    steps_batches_ = planned_ ? planned_batches() : vote_.ask(static_cast<int>(ahead_.size()));
    if (steps_batches_ > 0 && !vote_.all_have() && !options_.empty) agree_on_shapes();
    if (steps_batches_ > 0) start_step();
    return Iterator(*this);
  }
  std::default_sentinel_t end() const { return {}; }

  /// Whether the current batch is one of this rank's, not an empty one.
  bool has_data() const { return has_data_; }

  /// Whether the current batch is the last of its step, after which gradients are exchanged and the
  /// optimizer steps.
  bool is_last() const { return index_ + 1 == steps_batches_; }
  /// Skips the exchange of gradients while it lives, except for the last batch of a step.
  NoSyncGuard accumulate() { return NoSyncGuard(replica_, !is_last()); }

 private:
  // With a plan only the current batch, so that the position is that of the current batch.
  void read_ahead() {
    const int most = planned_ ? 1 : options_.gradient_accumulation_steps;
    while (!at_end_ && static_cast<int>(ahead_.size()) < most) {
      std::optional<Batch> batch = next_();
      at_end_ = !batch.has_value();
      if (batch) ahead_.push_back(std::move(*batch));
    }
  }

  // Number of batches of the step that begins with the batch that was read: the same on all ranks.
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
  int steps_batches_ = 0;  // of the current step
  int index_ = 0;          // of the current batch among them
  bool step_has_data_ = false;
};

}  // namespace lockstep
