#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/data/dataloader.h>
#include <torch/data/samplers/random.h>
#include <torch/data/samplers/sequential.h>

#include "lockstep/amp/autocast.h"
#include "lockstep/base/error.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/fully_shard/fully_shard.h"
#include "lockstep/train/accelerator_state.h"

/// What Accelerator::prepare returns: small values. Copies refer to the same object, and keep alive
/// what they share with the accelerator.
namespace lockstep {

/// A model that all ranks train: DistributedDataParallel or FullySharded, whose forward computes in
/// the accelerator's precision. A tensor that forward returns in float16 or bfloat16 under autocast
/// is converted to float32. Reach the module through `->` or `*`, the wrapper through ddp() or
/// fully_sharded().
template <class Module>
class PreparedModel {
 public:
  PreparedModel(std::shared_ptr<Module> module, std::shared_ptr<AcceleratorState> state,
                const DistributedDataParallelOptions& options)
      : replica_(std::make_shared<Replicated>(std::move(module), options, *state)),
        state_(std::move(state)) {
    state_->replicas.push_back(replica_);
    state_->shard_optimizers();
  }

  /// Calls the module's forward, whatever its signature.
  template <class... Args>
  decltype(auto) forward(Args&&... args) {
    using Outputs = decltype(replica_->module_of_type->forward(std::forward<Args>(args)...));
    const auto dtype = state_->autocast_dtype();
    std::optional<Autocast> autocast;
    if (dtype) {
      autocast.emplace(
          AutocastOptions{.device_type = state_->process_group().device().type(), .dtype = dtype});
    }
    if constexpr (std::is_same_v<std::remove_cvref_t<Outputs>, at::Tensor>) {
      at::Tensor output = forward_replica(std::forward<Args>(args)...);
      if (output.scalar_type() == at::kHalf || output.scalar_type() == at::kBFloat16) {
        return dtype || state_->shards_in_half() ? output.to(at::kFloat) : output;
      }
      return output;
    } else {
      return forward_replica(std::forward<Args>(args)...);
    }
  }
  template <class... Args>
  decltype(auto) operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

  /// The parameters for an optimizer or for clipping.
  std::vector<at::Tensor> parameters() const {
    return replica_->fully_sharded ? replica_->fully_sharded->parameters()
                                   : replica_->ddp->parameters();
  }
  /// The wrapper; a recovery recreates it. Errors: UsageError with the other Strategy.
  DistributedDataParallel<Module>& ddp() const {
    if (!replica_->ddp) throw UsageError("PreparedModel::ddp: the strategy is kFullyShard");
    return *replica_->ddp;
  }
  /// The wrapper of Strategy::kFullyShard. Errors: UsageError with the other.
  FullySharded<Module>& fully_sharded() const {
    if (!replica_->fully_sharded) {
      throw UsageError("PreparedModel::fully_sharded: the strategy is kDdp");
    }
    return *replica_->fully_sharded;
  }
  /// The module that was prepared.
  const std::shared_ptr<Module>& module() const { return replica_->module_of_type; }
  Module* operator->() const { return module().get(); }
  Module& operator*() const { return *module(); }

 private:
  struct Replicated : PreparedReplica {
    Replicated(std::shared_ptr<Module> module, const DistributedDataParallelOptions& given,
               const AcceleratorState& state)
        : module_of_type(std::move(module)),
          options(given),
          keeps_gradients(state.options().logical_shards > 0) {
      if (state.options().strategy == Strategy::kFullyShard) {
        fully_sharded.emplace(module_of_type, state.fully_shard_options());
      } else {
        replicate(options);
      }
    }
    template <class... Args>
    decltype(auto) forward(Args&&... args) {
      if constexpr (FullySharded<Module>::template kCanForward<Args...>) {
        if (fully_sharded) return fully_sharded->forward(std::forward<Args>(args)...);
      } else if (fully_sharded) {
        throw UsageError(
            "fully_shard: forward takes a tensor by a reference that it may change; take it by "
            "value or const reference");
      }
      return ddp->forward(std::forward<Args>(args)...);
    }
    void replicate(const DistributedDataParallelOptions& how) {
      keeps_own.reset();
      ddp.reset();
      ddp.emplace(module_of_type, how);
      if (keeps_gradients) keeps_own = no_sync();
    }
    std::shared_ptr<torch::nn::Module> module() const override { return module_of_type; }
    ShardedModule* sharded() override {
      return fully_sharded ? &fully_sharded->sharded() : nullptr;
    }
    void backward(const at::Tensor& loss, const WeightedBackwardOptions& how) override {
      fully_sharded ? fully_sharded->backward(loss, how) : ddp->backward(loss, how);
    }
    void zero_grad() override { fully_sharded ? fully_sharded->zero_grad() : ddp->zero_grad(); }
    std::shared_ptr<void> no_sync() override {
      if (!fully_sharded) return std::shared_ptr<NoSyncGuard>(new NoSyncGuard(ddp->no_sync()));
      fully_sharded->set_requires_gradient_sync(false);
      return {nullptr, [this](void*) { fully_sharded->set_requires_gradient_sync(true); }};
    }
    double gradient_norm() const override {
      return fully_sharded ? fully_sharded->gradient_norm() : ddp->gradient_norm();
    }
    void replicate_over(const ProcessGroup& group, bool may_share) override {
      DistributedDataParallelOptions now = options;
      now.process_group = group;
      now.init_sync = false;
      now.one_copy_per_machine = options.one_copy_per_machine && may_share;
      replicate(now);
    }

    std::shared_ptr<Module> module_of_type;
    DistributedDataParallelOptions options;
    bool keeps_gradients;  ///< with logical_shards the accelerator exchanges gradients
    std::optional<DistributedDataParallel<Module>> ddp;
    std::optional<FullySharded<Module>> fully_sharded;  ///< in its place
    std::shared_ptr<void> keeps_own;
  };

  // If ranks are lost, calls the module without the others: the step is void.
  template <class... Args>
  decltype(auto) forward_replica(Args&&... args) {
    if (!state_->can_fail()) return replica_->forward(std::forward<Args>(args)...);
    state_->choose_parameters();
    if (!state_->has_lost_group()) {
      // Arguments that cannot be passed twice: the error goes to the program.
      constexpr bool kCanRepeat = requires {
        replica_->module_of_type->forward(args...);
      };
      if constexpr (!kCanRepeat) {
        return replica_->forward(std::forward<Args>(args)...);
      } else {
        try {
          return replica_->forward(args...);
        } catch (const Error& error) {
          if (!state_->fail(error)) throw;
        }
      }
    }
    if (replica_->fully_sharded) return replica_->forward(std::forward<Args>(args)...);
    return replica_->module_of_type->forward(std::forward<Args>(args)...);
  }

  std::shared_ptr<Replicated> replica_;
  std::shared_ptr<AcceleratorState> state_;
};

/// An optimizer that steps only when a step is complete: after the last accumulated batch. Reach
/// the optimizer through `->` or `*`.
template <class Optimizer>
class PreparedOptimizer {
 public:
  PreparedOptimizer(Optimizer& optimizer, std::shared_ptr<AcceleratorState> state)
      : optimizer_(&optimizer),
        stepped_(std::make_shared<AcceleratorState::PreparedOptimizerState>()),
        state_(std::move(state)) {
    stepped_->optimizer = optimizer_;
    state_->optimizers.push_back(stepped_);
    state_->shard_optimizers();
  }

  /// Updates the parameters; does nothing while the step is incomplete or void.
  /// Errors: Error for gradients that are not finite, with AcceleratorOptions::non_finite kStop.
  void step() { state_->step(*stepped_); }
  /// Clears the gradients; does nothing while a step is incomplete. So it may stand before
  /// backward() or after step().
  void zero_grad(bool set_to_none = true) {
    if (state_->may_zero_grad(*stepped_)) optimizer_->zero_grad(set_to_none);
  }
  /// Whether the last complete step was skipped because its gradients were not finite.
  bool step_was_skipped() const { return stepped_->was_skipped; }

  Optimizer* operator->() const { return optimizer_; }
  Optimizer& operator*() const { return *optimizer_; }

 private:
  Optimizer* optimizer_;
  std::shared_ptr<AcceleratorState::PreparedOptimizerState> stepped_;
  std::shared_ptr<AcceleratorState> state_;
};

/// A learning rate scheduler that steps once per optimizer step, not once per rank. Reach the
/// scheduler through `->` or `*`.
template <class Scheduler>
class PreparedScheduler {
 public:
  PreparedScheduler(Scheduler& scheduler, std::shared_ptr<AcceleratorState> state)
      : scheduler_(&scheduler),
        scheduled_(std::make_shared<AcceleratorState::PreparedSchedulerState>()),
        state_(std::move(state)) {
    scheduled_->scheduler = scheduler_;
    state_->schedulers.push_back(scheduled_);
  }

  /// Makes one step; does nothing while the step is incomplete, void or skipped.
  void step() { state_->step(*scheduled_); }

  Scheduler* operator->() const { return scheduler_; }
  Scheduler& operator*() const { return *scheduler_; }

 private:
  Scheduler* scheduler_;
  std::shared_ptr<AcceleratorState::PreparedSchedulerState> scheduled_;
  std::shared_ptr<AcceleratorState> state_;
};

inline namespace internal {

/// The dataset and options of a data loader of LibTorch.
template <class Dataset>
struct TakenDataset {
  Dataset dataset;
  DataLoaderOptions options;
};

/// Access to a protected member of LibTorch's loader: its dataset.
template <class Loader, class Dataset>
struct DatasetOfLoader : Loader {
  /// The dataset that the loader owns.
  static std::unique_ptr<Dataset>& get(Loader& loader) {
    return loader.*(&DatasetOfLoader::main_thread_dataset_);
  }
};

/// Moves the dataset out of a loader, which is then unusable.
/// Errors: UsageError for a loader with workers.
template <class Dataset, class Sampler>
TakenDataset<Dataset> take_dataset(torch::data::StatelessDataLoader<Dataset, Sampler>& loader) {
  constexpr bool kShuffles = std::is_same_v<Sampler, torch::data::samplers::RandomSampler>;
  static_assert(kShuffles || std::is_same_v<Sampler, torch::data::samplers::SequentialSampler>,
                "a loader with this sampler cannot be distributed: give the dataset to "
                "Accelerator::make_data_loader");
  const auto& options = loader.options();
  if (options.workers > 0) {
    throw UsageError(
        "Accelerator::prepare: the data loader has workers, which keep its dataset; give the "
        "dataset to Accelerator::make_data_loader, whose options have workers, too");
  }
  using Base = torch::data::DataLoaderBase<Dataset, typename Dataset::BatchType,
                                           typename Sampler::BatchRequestType>;
  return {.dataset = std::move(*DatasetOfLoader<Base, Dataset>::get(loader)),
          .options = {.batch_size = static_cast<std::int64_t>(options.batch_size),
                      .shuffle = kShuffles,
                      .drop_last = options.drop_last}};
}

}  // namespace internal

}  // namespace lockstep
