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

inline namespace internal {

/// A module holder, as TORCH_MODULE declares it: it owns a module through a shared_ptr.
template <class T>
concept ModuleHolder = requires {
  typename T::ContainedType;
};

/// Whether T is a tensor, or a container, map, pair, tuple or optional of tensors.
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

/// Appends the tensors in a module's output; ignores everything else.
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

}  // namespace internal

/// Trains one replica of a module on each rank and keeps the replicas bit-identical: averages the
/// gradients over all ranks while backward() runs, and copies rank 0's buffers to all ranks.
///
///     DistributedDataParallel model(ToyModel(), {.process_group = group});
///     torch::optim::SGD optimizer(model->parameters(), 1e-3);
///     torch::mse_loss(model(inputs), targets).backward();   // .grad holds the average over ranks
///     optimizer.step();
///
/// Accepts a module holder (TORCH_MODULE), a shared_ptr or a temporary module, which it keeps, or a
/// module variable, which must outlive it. Access the module through `->` or `*`. Without options
/// write `DistributedDataParallel model{ToyModel()}`: with parentheses C++ parses a function
/// declaration.
///
/// Change dtype, device or requires_grad before construction. After backward() a .grad may be a
/// view of a bucket, into which the next backward pass writes: clone() a gradient that you keep.
/// Construction, forward and backward are collective: every rank must do the same.
///
/// Algorithm: "PyTorch Distributed" (Li et al., VLDB 13(12), 2020).
/// Threads: construct it and call forward and backward on one thread, any of the process.
/// Autograd's own threads run the hooks.
/// Lifetime: keeps the process group alive.
/// Errors: UsageError at construction for a module without parameters that require gradients, for
/// invalid options, and for modules or options that differ between ranks; ReplicaDrift from forward
/// with check_replicas_every; TimeoutError, PeerLost and CommError from construction, forward and
/// backward(), after which the group is unusable. docs/distributed-data-parallel.md has a table.
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

  /// Calls the module's forward, of any signature.
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

  /// Runs loss.backward() for a loss that is a mean over `weight` samples (or tokens, …). The
  /// exchange then gives Σ weight × gradient / Σ weight, over all ranks and all backward passes
  /// since the last exchange: the gradient of one process with all these samples, for any split of
  /// them. If one pass of a step calls this, all passes on all ranks must. It costs one message of
  /// 16 bytes per step, sent while backward runs.
  ///
  /// Weight 0: the pass adds nothing, even if the loss is NaN; SyncBatchNorm however passes such a
  /// NaN to other ranks. A backward that reaches no parameter takes part in the exchange with
  /// zeros.
  ///
  /// The loss is multiplied by the weight before backward, so gradients of other tensors than this
  /// model's parameters are multiplied too; the parameters of another wrapped module in the same
  /// loss get this weight. A float16 or bfloat16 loss is multiplied by the weight rounded to its
  /// dtype, which layers that communicate in backward (SyncBatchNorm) see. This model's gradients
  /// still get the exact weight; other wrapped modules are refused. A float16 loss is not
  /// multiplied by weights over 2048, which could overflow: with such layers give weights in
  /// thousands of samples. Either all ranks' losses have one of these dtypes or none.
  ///
  /// zero_grad() of the module or of an optimizer before the exchange discards a pass and its
  /// weight, unless the program has written to the zeros. A pass that reached no parameter is
  /// discarded only by zero_grad() of this wrapper. A pass that fails before it reaches a parameter
  /// is not counted.
  ///
  /// Errors: UsageError for a weight below 0, for a loss of more than one element, and for a loss
  /// that requires no gradient. If one rank continues after an error in its pass, the others wait
  /// for its gradients until their deadline.
  void backward(const at::Tensor& loss, const WeightedBackwardOptions& options = {}) {
    replica_.backward(loss, options);
  }

  /// Zeroes the module's gradients and discards all passes since the last exchange.
  void zero_grad(bool set_to_none = true) {
    module_->zero_grad(set_to_none);
    replica_.discard_passes();
  }

  /// This rank's batches, for ranks with different numbers of batches; see UnevenInputs. `loader`:
  /// a torch::data loader, a DataLoader or any range of batches.
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

  /// Skips the exchange while the returned guard lives: backward() accumulates this rank's
  /// gradients in .grad. The first backward() after it exchanges the sum.
  ///
  ///     const auto no_sync = model.no_sync(!is_last);   // micro-batches of a step
  [[nodiscard]] NoSyncGuard no_sync(bool enabled = true) { return NoSyncGuard(replica_, enabled); }

  /// L2 norm of all averaged gradients of the last backward() that exchanged them; the same bits on
  /// every rank. With one_copy_per_machine it is collective and must precede step(): the first call
  /// averages the gradients.
  /// Errors: UsageError without the option gradient_norm, and before the first such backward().
  double gradient_norm() const { return replica_.gradient_norm(); }

  /// Averages over all ranks of the last backward()'s gradients, in the order of the trained
  /// parameters; undefined for a parameter without a gradient on any rank. Usually the tensors in
  /// .grad. With one_copy_per_machine copies, until step() or zero_grad() discards the gradients,
  /// and collective.
  std::vector<at::Tensor> averaged_gradients() { return replica_.averaged_gradients(); }

  /// The buckets in the order in which their exchanges start, the same on every rank. Empty before
  /// the first exchange, from which they are planned.
  std::vector<BucketLayout> bucket_layout() const { return replica_.bucket_layout(); }

  /// When each bucket of the last backward() was exchanged, on this rank, and how much of the
  /// exchange backward hid.
  /// Errors: UsageError without the option measure_exchange, and before the first such backward().
  ExchangeReport exchange_report() const { return replica_.exchange_report(); }

  /// Compares parameters and buffers of all ranks bit for bit, without the ignored ones; the
  /// overload also the optimizer's state. Collective. Cost: as lockstep::check_replicas_agree.
  /// Errors: ReplicaDrift, the same on every rank; else see Work::wait.
  void check_replicas_agree() const { replica_.check_replicas_agree(nullptr); }
  void check_replicas_agree(const torch::optim::Optimizer& optimizer) const {
    replica_.check_replicas_agree(&optimizer);
  }
  /// Includes an optimizer in the comparisons of the option check_replicas_every.
  /// Lifetime: the optimizer must live as long as forward is called.
  void check_replicas_with(const torch::optim::Optimizer& optimizer) {
    replica_.check_replicas_with(optimizer);
  }

  /// The module's parameters, without the ignored ones.
  std::vector<at::Tensor> parameters() const { return replica_.parameters(); }

  Module* operator->() { return module_.get(); }
  const Module* operator->() const { return module_.get(); }
  Module& operator*() { return *module_; }
  const Module& operator*() const { return *module_; }
  /// The wrapped module.
  const std::shared_ptr<Module>& module() const { return module_; }
  /// The group over which gradients are averaged.
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
          "DistributedDataParallel: find_unused_parameters cannot find tensors in the result of "
          "forward; return tensors in containers, tuples or optionals, or leave the option out");
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
