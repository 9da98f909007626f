#pragma once

#include <concepts>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/data_parallel_replicas.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/fully_shard/sharded_module.h"

namespace lockstep {

/// A module of which each rank holds a shard of the parameters, their gradients and, with an
/// optimizer of parameters(), its state. See fully_shard.
///
/// Unit by unit, parameters are gathered before they are used in forward, freed after it, gathered
/// again in backward and freed when their gradients are reduced and scattered. parameters() are
/// this rank's pieces of the module's parameters, one-dimensional, some of them empty; after
/// backward() their .grad is the average over ranks. Optimizers that treat each element by itself
/// (SGD, Adam, AdamW, Adagrad, RMSprop, Lion, …) compute what they would on whole parameters; LAMB
/// and LBFGS, which need norms of whole parameters, do not. For clipping give clip_grad_norm_
/// process_group() and replicate_group().
///
/// The module's own tensors have values in forward and backward alone; operators that get one at
/// another time throw. Module code needs no change: a unit is gathered when LibTorch is to run an
/// operator on a parameter of it. All ranks must use the same units in the same order.
///
/// It follows "PyTorch FSDP" (Zhao et al., VLDB 16(12), 2023).
/// Threads: call from the training thread.
/// Lifetime: keeps the process group alive; the module is of no use after it.
/// Errors: at construction UsageError for modules and options that differ between ranks; from
/// forward and backward() TimeoutError, PeerLost, CommError, UsageError.
template <class Module>
requires(!ModuleHolder<Module>) class FullySharded {
 private:
  template <class T>
  using Passed = std::conditional_t<data_parallel::kHoldsTensors<std::remove_cvref_t<T>>,
                                    std::remove_cvref_t<T>, T&&>;

 public:
  explicit FullySharded(std::shared_ptr<Module> module, const FullyShardOptions& options = {})
      : module_(std::move(module)), sharded_(std::make_unique<ShardedModule>(module_, options)) {}

  template <ModuleHolder Holder>
  requires std::same_as<typename Holder::ContainedType, Module>
  explicit FullySharded(const Holder& holder, const FullyShardOptions& options = {})
      : FullySharded(holder.ptr(), options) {}

  explicit FullySharded(Module&& module, const FullyShardOptions& options = {})
      : FullySharded(std::make_shared<Module>(std::move(module)), options) {}

  /// Calls the module's forward, whatever its signature. Collective.
  template <class... Args>
  decltype(auto) forward(Args&&... args) {
    return call([&](Module& module) -> decltype(auto) {
      return module.forward(cast(std::forward<Args>(args))...);
    });
  }
  template <class... Args>
  decltype(auto) operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

  /// Whether forward() can be called with these: tensors among them arrive as values.
  template <class... Args>
  static constexpr bool kCanForward = requires(Module& module) {
    module.forward(std::declval<Passed<Args>>()...);
  };

  /// Calls another function of the module as forward() calls its forward: `function(Module&)`.
  template <class Function>
  decltype(auto) call(Function&& function) {
    ShardedModule::Forward forward(*sharded_);
    if constexpr (std::is_void_v<std::invoke_result_t<Function, Module&>>) {
      std::forward<Function>(function)(*module_);
      forward.leave();
    } else {
      decltype(auto) result = std::forward<Function>(function)(*module_);
      forward.leave();
      return result;
    }
  }

  /// As loss.backward(), for a loss that is a mean over `weight` samples: as that of
  /// DistributedDataParallel, for a loss of float32 or float64.
  void backward(const at::Tensor& loss, const WeightedBackwardOptions& options = {}) {
    sharded_->backward(loss, options);
  }

  /// This rank's pieces, in the order of the module's parameters, each once, and parameters that
  /// are ignored: what optimizers take.
  std::vector<at::Tensor> parameters() const {
    std::vector<at::Tensor> tensors;
    for (auto& [name, tensor] : named_parameters()) tensors.push_back(std::move(tensor));
    return tensors;
  }
  /// The same with the names of the module's parameters.
  TensorDict named_parameters() const { return sharded_->named_parameters(); }

  /// Of parameters(), and of passes without exchange.
  void zero_grad(bool set_to_none = true) { sharded_->zero_grad(set_to_none); }

  /// L2 norm of the gradients of all ranks' pieces, as the last backward() that exchanged them left
  /// them; ignored parameters not counted.
  /// Errors: UsageError without the option gradient_norm, and before the first such backward().
  double gradient_norm() const { return sharded_->gradient_norm(); }

  /// While false, backward() leaves this rank's gradients, unsharded, to add up; the next
  /// backward() after it reduces the sum: for all micro-batches of a step but the last.
  void set_requires_gradient_sync(bool sync) { sharded_->set_requires_gradient_sync(sync); }

  /// Parameters and buffers of the whole module by their names, as state_dict() gives them for a
  /// module that is not sharded; values are copies in the shards' dtype, buffers are this rank's.
  /// Collective.
  TensorDict full_state_dict(const FullStateDictOptions& options = {}) const {
    return sharded_->full_state_dict(options);
  }
  /// Takes over a state dict of the whole module: every rank its pieces, all or nothing.
  /// Errors: UsageError naming what differs in names, shapes or dtypes.
  void load_full_state_dict(const TensorDict& values) { sharded_->load_full_state_dict(values); }

  /// Names of the modules that are units with parameters; the module itself is "".
  std::vector<std::string> unit_names() const { return sharded_->unit_names(); }

  /// Its named_parameters() have the names and shapes of whole parameters, and no values: not for
  /// optimizers.
  const std::shared_ptr<Module>& module() const { return module_; }
  /// Puts the module into training mode.
  void train(bool on = true) { module_->train(on); }
  /// Puts the module into evaluation mode.
  void eval() { module_->eval(); }
  /// The ranks that have the shards of one replica.
  const ProcessGroup& process_group() const { return sharded_->process_group(); }
  /// The ranks that hold the same shards; empty: there is one replica.
  const ProcessGroup& replicate_group() const { return sharded_->replicate_group(); }
  /// The part that does not depend on the module's type.
  ShardedModule& sharded() const { return *sharded_; }

 private:
  template <class T>
  decltype(auto) cast(T&& argument) const {
    if constexpr (data_parallel::kHoldsTensors<std::remove_cvref_t<T>>) {
      return data_parallel::map_tensors<std::remove_cvref_t<T>>(
          argument, [&](const at::Tensor& input) { return sharded_->cast_input(input); });
    } else {
      return std::forward<T>(argument);
    }
  }

  std::shared_ptr<Module> module_;
  std::unique_ptr<ShardedModule> sharded_;
};

template <class Holder>
requires requires {
  typename Holder::ContainedType;
}
FullySharded(const Holder&, const FullyShardOptions& = {})
    ->FullySharded<typename Holder::ContainedType>;
template <class Module>
FullySharded(std::shared_ptr<Module>, const FullyShardOptions& = {}) -> FullySharded<Module>;

/// Shards a module over the ranks of a group, in the manner of PyTorch's fully_shard:
///
///   auto model = lockstep::fully_shard(GPT(config), {.auto_wrap_policy =
///   module_wrap_policy<BlockImpl>()}); lockstep::AdamW optimizer(model.parameters(), {.lr =
///   3e-4}); torch::mse_loss(model(inputs), targets).backward();   // .grad of parameters(): the
///   average lockstep::clip_grad_norm_(model.parameters(), 1.0,
///                                     {.process_group = model.process_group()});
///   optimizer.step();
///
/// Takes a module holder (TORCH_MODULE), a shared_ptr or a temporary module. Change dtype, device
/// or requires_grad before. Collective.
template <class Module>
auto fully_shard(Module&& module, const FullyShardOptions& options = {}) {
  return FullySharded(std::forward<Module>(module), options);
}

/// The policy by which each submodule of one of these types is a unit.
template <class... Modules>
AutoWrapPolicy module_wrap_policy() {
  return [](const std::string&, const torch::nn::Module& module) {
    return ((dynamic_cast<const Modules*>(&module) != nullptr) || ...);
  };
}

}  // namespace lockstep
