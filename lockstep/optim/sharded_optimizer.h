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
#include "lockstep/snapshot/sharded_state.h"

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

struct ShardedOptimizerOptions {
  /// Empty: the default group.
  ProcessGroup process_group = {};
  /// Move the parameters one behind the other into memory that the group exchanges as it is (shared
  /// memory where the group has it), so that step() copies nothing but from rank to rank. Storage
  /// changes hands: not for parameters of which the program keeps views.
  bool parameters_as_bucket_view = false;
};

/// The part of ShardedOptimizer that does not depend on the optimizer's type.
/// Threads, lifetime, errors: as ShardedOptimizer.
class OptimizerShards {
 public:
  OptimizerShards(torch::optim::Optimizer& optimizer, const ShardedOptimizerOptions& options);
  ~OptimizerShards();
  OptimizerShards(OptimizerShards&&) noexcept;
  OptimizerShards& operator=(OptimizerShards&&) noexcept;

  /// Plans the groups that were added since the last call. Collective when there are some.
  void plan(torch::optim::Optimizer& optimizer);

  /// Runs `step_own`, to which the optimizer's groups show this rank's parameters only, and
  /// exchanges what came of it.
  void step(torch::optim::Optimizer& optimizer, const std::function<void()>& step_own);

  bool keeps_state_of(const at::Tensor& parameter) const;
  c10::IValue consolidated_state_dict(const torch::optim::Optimizer& optimizer,
                                      std::optional<int> target) const;
  [[noreturn]] void refuse_archive() const;

  const ProcessGroup& process_group() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// An optimizer whose state is spread over ranks: each rank keeps the state of its
/// share of the parameters, updates these, and gets the others from their ranks. The parameters are
/// the same bits as with the optimizer itself on every rank; the state takes 1 / world_size of the
/// memory. ZeRO, stage 1 (Rajbhandari et al., SC20); PyTorch's ZeroRedundancyOptimizer.
///
///   ShardedOptimizer<torch::optim::AdamW> optimizer(model->parameters(),
///                                                   torch::optim::AdamWOptions(1e-3));
///   …  loss.backward();  optimizer.step();
///
/// It is an `Optimizer`, with all parameters in its groups: learning rates change through the
/// groups' options, on every rank alike, schedulers take it, SnapshotDirectory stores it whole and
/// loads it on any number of ranks. state() has this rank's share. Gradients must be the same on
/// all ranks, as DistributedDataParallel leaves them. For every optimizer that treats each
/// parameter by itself: LibTorch's but LBFGS, those of optimizers.h, your own. Construction,
/// step(), add_param_group() and consolidated_state_dict() are collective. Threads: the training
/// thread. Lifetime: keeps the process group alive. Errors: at construction UsageError for
/// parameters that differ from rank 0's or have memory in common, PeerFailed on the other ranks;
/// UsageError from step() when parameters of a group were exchanged for others; else as Work::wait.
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

  /// Updates this rank's parameters and gives them to all ranks. The closure is called once,
  /// before.
  at::Tensor step(typename Optimizer::LossClosure closure = nullptr) override {
    at::Tensor loss;
    if (closure) {
      const at::AutoGradMode enable_grad(true);
      loss = closure();
    }
    shards_.step(*this, [this] { Optimizer::step(); });
    return loss;
  }

  /// Parameters that were added before keep their ranks.
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

  /// Not offered: they would hold this rank's shard only. Errors: UsageError.
  void save(torch::serialize::OutputArchive&) const override { shards_.refuse_archive(); }
  void load(torch::serialize::InputArchive&) override { shards_.refuse_archive(); }

  const ProcessGroup& process_group() const { return shards_.process_group(); }

 private:
  OptimizerShards shards_;
};

}  // namespace lockstep
