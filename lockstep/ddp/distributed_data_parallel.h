#pragma once

#include <concepts>
#include <memory>
#include <optional>
#include <ranges>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/replica.h"
#include "lockstep/ddp/uneven_inputs.h"

namespace lockstep {

/// A module holder as TORCH_MODULE makes them: it owns a module through a shared_ptr.
template <class T>
concept ModuleHolder = requires {
  typename T::ContainedType;
};

/// Whether T is a tensor, or made of such: containers, maps, pairs, tuples and optionals of them.
template <class T>
struct HoldsTensors : std::false_type {};
template <>
struct HoldsTensors<at::Tensor> : std::true_type {};
template <class T>
struct HoldsTensors<std::optional<T>> : HoldsTensors<T> {};
template <class... T>
struct HoldsTensors<std::tuple<T...>>
    : std::bool_constant<(HoldsTensors<std::remove_cvref_t<T>>::value || ...)> {};
template <class First, class Second>
struct HoldsTensors<std::pair<First, Second>> : HoldsTensors<std::tuple<First, Second>> {};
template <class T>
requires(std::ranges::input_range<T> && !std::is_same_v<T, at::Tensor>) struct HoldsTensors<T>
    : HoldsTensors<std::remove_cvref_t<std::ranges::range_value_t<T>>> {
};

/// Appends the tensors that a module's output holds. What holds none is passed over.
template <class T>
void collect_tensors(const T& output, std::vector<at::Tensor>& tensors) {
  if constexpr (std::is_base_of_v<at::Tensor, T>) {
    tensors.push_back(output);
  } else if constexpr (!HoldsTensors<T>::value) {
    return;
  } else if constexpr (std::ranges::input_range<T>) {
    for (const auto& item : output) collect_tensors(item, tensors);
  } else if constexpr (requires { output.has_value(); }) {
    if (output.has_value()) collect_tensors(*output, tensors);
  } else {
    std::apply([&](const auto&... items) { (collect_tensors(items, tensors), ...); }, output);
  }
}

/// Trains one replica of a module on each rank and keeps the replicas bit-identical: averages the
/// gradients over all ranks while backward() runs, and gives every rank rank 0's buffers.
///
///   DistributedDataParallel model(ToyModel(), {.process_group = group});
///   torch::optim::SGD optimizer(model->parameters(), 1e-3);
///   torch::mse_loss(model(inputs), targets).backward();   // .grad holds the average over ranks
///   optimizer.step();
///
/// Takes a module holder (TORCH_MODULE), a shared_ptr or a temporary module, which it keeps, or a
/// module variable, which must outlive it. Everything of the module is reached through `->` or `*`.
/// After backward() a .grad may be a view of an exchange bucket: the next backward pass writes to
/// the same memory, so clone() a gradient that is to outlive it. Change dtype, device or
/// requires_grad before wrapping. Without options write DistributedDataParallel model{ToyModel()}:
/// with parentheses alone C++ reads a function declaration. Construction, forward and backward are
/// collective: every rank must do the same. It follows "PyTorch Distributed" (Li et al., VLDB
/// 13(12), 2020). Threads: the training thread. Lifetime: keeps the process group alive. Errors: at
/// construction UsageError for a module without parameters that require gradients and for modules
/// that differ between ranks; from forward and backward() TimeoutError, PeerLost, CommError.
template <class Module>
requires(!ModuleHolder<Module>) class DistributedDataParallel {
 public:
  explicit DistributedDataParallel(std::shared_ptr<Module> module,
                                   const DistributedDataParallelOptions& options = {})
      : module_(std::move(module)), replica_(module_, options) {}

  template <ModuleHolder Holder>
  requires std::same_as<typename Holder::ContainedType, Module>
  explicit DistributedDataParallel(const Holder& holder,
                                   const DistributedDataParallelOptions& options = {})
      : DistributedDataParallel(holder.ptr(), options) {}

  explicit DistributedDataParallel(Module& module,
                                   const DistributedDataParallelOptions& options = {})
      : DistributedDataParallel(std::shared_ptr<Module>(std::shared_ptr<void>(), &module),
                                options) {}

  explicit DistributedDataParallel(Module&& module,
                                   const DistributedDataParallelOptions& options = {})
      : DistributedDataParallel(std::make_shared<Module>(std::move(module)), options) {}

  /// Calls the module's forward, whatever its signature.
  template <class... Args>
  decltype(auto) forward(Args&&... args) {
    replica_.before_forward();
    if constexpr (std::is_void_v<decltype(module_->forward(std::forward<Args>(args)...))>) {
      module_->forward(std::forward<Args>(args)...);
      replica_.after_forward();
    } else {
      decltype(auto) outputs = module_->forward(std::forward<Args>(args)...);
      if (replica_.finds_unused_parameters()) add_outputs(outputs);
      replica_.after_forward();
      return outputs;
    }
  }
  template <class... Args>
  decltype(auto) operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

  /// As loss.backward(), for a loss that is a mean over `weight` samples (or tokens, …): when
  /// gradients are exchanged they become Σ weight × gradient / Σ weight over all ranks and over all
  /// backward passes since the last exchange, which is the gradient that one process would have on
  /// all samples together, however they are split. All passes of a step, on all ranks, must be made
  /// so. Costs a message of 16 bytes a step, under way while backward runs.
  ///
  /// A weight of 0 counts nothing, even where the loss is no number; but a SyncBatchNorm hands such
  /// a loss on to other ranks. Of the parameters of other wrapped modules in the same loss the
  /// weight is that of their gradients, too; gradients of other tensors are multiplied by it. A
  /// float16 or bfloat16 loss is multiplied by the weight rounded to its dtype, which layers that
  /// exchange in backward (SyncBatchNorm) see; the rest is applied to the gradients that arrive at
  /// the parameters of this model, so that these have the exact weight, and other wrapped modules
  /// are refused. A float16 loss is not multiplied by weights over 2048, which could overflow:
  /// give weights in thousands of samples where such layers are used. All ranks' losses must be of
  /// one kind. A backward that reaches no parameter takes part in the exchange with zeros.
  ///
  /// Gradients that are given up before they are exchanged do not count: after zero_grad() of the
  /// module or of an optimizer, too; nor do zeros that the program has touched. A pass that has
  /// reached no parameter leaves nothing that these could give up: it counts until zero_grad() of
  /// the wrapper. One that fails before it has reached a parameter does not count.
  ///
  /// Errors: UsageError for a weight below 0 and for a loss that is not one number, or depends on
  /// nothing that requires a gradient. Where a rank alone goes on after an error in the pass, the
  /// others wait for its gradients until the timeout.
  void backward(const at::Tensor& loss, const WeightedBackwardOptions& options = {}) {
    replica_.backward(loss, options);
  }

  /// That of the module. All passes since the last exchange are given up, whatever they have
  /// reached.
  void zero_grad(bool set_to_none = true) {
    module_->zero_grad(set_to_none);
    replica_.give_up_passes();
  }

  /// This rank's batches, for ranks that have different numbers of them: see UnevenInputs. `loader`
  /// is a torch::data loader, a DataLoader or any range of batches.
  template <class Loader>
  auto join(Loader& loader,
            UnevenInputsOptions<std::remove_cvref_t<decltype(*loader.begin())>> options = {}) {
    using Batch = std::remove_cvref_t<decltype(*loader.begin())>;
    auto next = [&loader, at = std::optional<decltype(loader.begin())>()]() mutable {
      at ? static_cast<void>(++*at) : static_cast<void>(at.emplace(loader.begin()));
      return *at == loader.end() ? std::optional<Batch>() : std::optional<Batch>(**at);
    };
    std::shared_ptr<const LoaderPosition> planned;
    if constexpr (requires { planned = loader.position(); }) planned = loader.position();
    return UnevenInputs<Batch>(replica_, std::move(next), std::move(options), std::move(planned));
  }

  /// While the returned guard lives, backward() leaves this rank's own gradients in .grad, to which
  /// later ones add up; the first backward() after it exchanges the sum.
  ///
  ///   const auto no_sync = model.no_sync(!is_last);   // of the micro-batches of a step
  [[nodiscard]] NoSyncGuard no_sync(bool enabled = true) { return NoSyncGuard(replica_, enabled); }

  /// L2 norm of all averaged gradients, as the last backward() that exchanged them left them: the
  /// same bits on every rank. With one_copy_per_machine collective, and before step(): the first
  /// call averages the gradients. Errors: UsageError without the option gradient_norm, and before
  /// the first such backward().
  double gradient_norm() const { return replica_.gradient_norm(); }

  /// The averages over all ranks of the gradients of the last backward(), in the order of the
  /// parameters that are trained; undefined where no rank has one. With one_copy_per_machine
  /// copies, until step() or zero_grad() gives the gradients up, and collective: every rank calls
  /// it. Otherwise what .grad holds.
  std::vector<at::Tensor> averaged_gradients() { return replica_.averaged_gradients(); }

  /// What is exchanged together, in the order in which exchanges start: the same on every rank.
  /// Empty before the first exchange, which shows what backward brings when.
  std::vector<BucketLayout> bucket_layout() const { return replica_.bucket_layout(); }

  /// When the buckets of the last backward() that exchanged gradients were exchanged, on this rank,
  /// and how much of it backward hid. Errors: UsageError without the option measure_exchange, and
  /// before the first such backward().
  ExchangeReport exchange_report() const { return replica_.exchange_report(); }

  /// Compares parameters and buffers of all ranks, bit for bit, without those that are ignored; and
  /// the optimizer's state. Collective. Errors and cost: ddp/replica_check.h.
  void check_replicas_agree() const { replica_.check_replicas_agree(nullptr); }
  void check_replicas_agree(const torch::optim::Optimizer& optimizer) const {
    replica_.check_replicas_agree(&optimizer);
  }
  /// The comparisons of the option check_replicas_every from now on include this optimizer, which
  /// must live as long as forward is called.
  void check_replicas_with(const torch::optim::Optimizer& optimizer) {
    replica_.check_replicas_with(optimizer);
  }

  std::vector<at::Tensor> parameters() const { return replica_.parameters(); }

  Module* operator->() { return module_.get(); }
  const Module* operator->() const { return module_.get(); }
  Module& operator*() { return *module_; }
  const Module& operator*() const { return *module_; }
  const std::shared_ptr<Module>& module() const { return module_; }
  const ProcessGroup& process_group() const { return replica_.process_group(); }

 private:
  template <class Outputs>
  void add_outputs(const Outputs& outputs) {
    if constexpr (HoldsTensors<Outputs>::value) {
      std::vector<at::Tensor> tensors;
      collect_tensors(outputs, tensors);
      replica_.add_outputs(tensors);
    } else {
      throw UsageError(
          "DistributedDataParallel: find_unused_parameters cannot look into what forward returns; "
          "return tensors in containers, tuples or optionals, or leave the option out");
    }
  }

  std::shared_ptr<Module> module_;
  Replica replica_;
};

template <class Holder>
requires requires {
  typename Holder::ContainedType;
}
DistributedDataParallel(const Holder&, const DistributedDataParallelOptions& = {})
    ->DistributedDataParallel<typename Holder::ContainedType>;
template <class Module>
DistributedDataParallel(std::shared_ptr<Module>, const DistributedDataParallelOptions& = {})
    -> DistributedDataParallel<Module>;

}  // namespace lockstep
