#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/snapshot/state_dict.h"

namespace torch::optim {
class LBFGS;
class Optimizer;
class OptimizerParamGroup;
}  // namespace torch::optim
namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace lockstep {

/// Options of ShardedOptimizer.
struct ShardedOptimizerOptions {
  /// Empty: the default group.
  ProcessGroup process_group = {};
  /// Move the parameters into contiguous memory that the group exchanges directly (shared memory if
  /// the group has it), so step() copies only between ranks. Parameters get other storage: not for
  /// parameters of which the program keeps views.
  bool parameters_as_bucket_view = false;
};

inline namespace internal {

/// Plans and exchanges the shards of a ShardedOptimizer: the part that is independent of the
/// optimizer's type.
/// Threads: as ShardedOptimizer.
/// Lifetime: as ShardedOptimizer.
/// Errors: as ShardedOptimizer.
class OptimizerShards {
 public:
  OptimizerShards(torch::optim::Optimizer& optimizer, const ShardedOptimizerOptions& options);
  ~OptimizerShards();
  OptimizerShards(OptimizerShards&&) noexcept;
  OptimizerShards& operator=(OptimizerShards&&) noexcept;

  /// Assigns the parameters of groups that were added since the last call to ranks. Collective if
  /// there are any.
  void plan(torch::optim::Optimizer& optimizer);

  /// Runs `step_own`, for which the optimizer's groups contain only this rank's parameters, and
  /// exchanges the updated parameters.
  void step(torch::optim::Optimizer& optimizer, const std::function<void()>& step_own);

  /// Whether this rank keeps the optimizer state of `parameter`.
  bool keeps_state_of(const at::Tensor& parameter) const;
  /// See ShardedState::consolidated_state_dict.
  c10::IValue consolidated_state_dict(const torch::optim::Optimizer& optimizer,
                                      std::optional<int> target) const;
  /// Throws the UsageError of ShardedOptimizer::save and load.
  [[noreturn]] void refuse_archive() const;

  /// The group over which the state is sharded.
  const ProcessGroup& process_group() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace internal

/// Shards an optimizer's state over ranks: each rank keeps the state of its parameters, updates
/// them, and receives the others from their ranks. The parameters have the bits of the unsharded
/// optimizer; the state takes 1 / world_size of the memory.
///
///     ShardedOptimizer<torch::optim::AdamW> optimizer(model->parameters(),
///                                                     torch::optim::AdamWOptions(1e-3));
///     …  loss.backward();  optimizer.step();
///
/// It is an `Optimizer` with all parameters in its groups. Change learning rates through the
/// groups' options, equally on every rank. Schedulers accept it; SnapshotDirectory stores it whole
/// and loads it on any number of ranks. state() has this rank's shard. Gradients must be equal on
/// all ranks, as after DistributedDataParallel. It works with every optimizer that updates each
/// parameter independently: LibTorch's except LBFGS, those of optimizers.h, your own. Construction,
/// step(), add_param_group() and consolidated_state_dict() are collective.
///
/// Algorithm: ZeRO, stage 1 (Rajbhandari et al., SC20), as PyTorch's ZeroRedundancyOptimizer.
/// Threads: call from the training thread.
/// Lifetime: keeps the process group alive.
/// Errors: at construction UsageError for parameters that differ from rank 0's or share memory,
/// PeerFailed on the other ranks; UsageError from step() if a group's parameters were replaced;
/// else see Work::wait.
template <class Optimizer>
class ShardedOptimizer : public Optimizer, public ShardedState {
  static_assert(
      !std::is_same_v<Optimizer, torch::optim::LBFGS>,
      "LBFGS treats all parameters as one vector: its state cannot be split by parameter");

 public:
  /// `defaults`: the optimizer's options, as its own constructor takes them.
  template <class Defaults>
  ShardedOptimizer(std::vector<at::Tensor> parameters, Defaults&& defaults,
                   const ShardedOptimizerOptions& options = {})
      : Optimizer(std::move(parameters), std::forward<Defaults>(defaults)),
        shards_(*this, options) {}

  template <class Defaults>
  ShardedOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                   Defaults&& defaults, const ShardedOptimizerOptions& options = {})
      : Optimizer(groups, std::forward<Defaults>(defaults)), shards_(*this, options) {}

  /// Updates this rank's parameters and sends them to all ranks. Calls `closure` once, before the
  /// update.
  at::Tensor step(typename Optimizer::LossClosure closure = nullptr) override {
    at::Tensor loss;
    if (closure) {
      const at::AutoGradMode enable_grad(true);
      loss = closure();
    }
    shards_.step(*this, [this] { Optimizer::step(); });
    return loss;
  }

  /// Adds a parameter group. Earlier parameters keep their ranks.
  void add_param_group(const torch::optim::OptimizerParamGroup& group) {
    Optimizer::add_param_group(group);
    shards_.plan(*this);
  }

  bool keeps_state_of(const at::Tensor& parameter) const override {
    return shards_.keeps_state_of(parameter);
  }

  c10::IValue consolidated_state_dict(std::optional<int> target = 0) const override {
    return shards_.consolidated_state_dict(*this, target);
  }

  /// Not supported, because an archive would hold only this rank's shard.
  /// Errors: UsageError.
  void save(torch::serialize::OutputArchive&) const override { shards_.refuse_archive(); }
  /// Not supported; see save().
  /// Errors: UsageError.
  void load(torch::serialize::InputArchive&) override { shards_.refuse_archive(); }

  /// The group over which the state is sharded.
  const ProcessGroup& process_group() const { return shards_.process_group(); }

 private:
  OptimizerShards shards_;
};

}  // namespace lockstep
