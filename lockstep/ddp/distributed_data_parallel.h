#pragma once

#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/replica.h"

namespace lockstep {

/// A module holder as TORCH_MODULE makes them: it owns a module through a shared_ptr.
template <class T>
concept ModuleHolder = requires {
  typename T::ContainedType;
};

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
      replica_.after_forward();
      return outputs;
    }
  }
  template <class... Args>
  decltype(auto) operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

  /// While the returned guard lives, backward() leaves this rank's own gradients in .grad, to which
  /// later ones add up; the first backward() after it exchanges the sum.
  [[nodiscard]] NoSyncGuard no_sync() { return NoSyncGuard(replica_); }

  /// L2 norm of all averaged gradients, as the last backward() that exchanged them left them: the
  /// same bits on every rank. Errors: UsageError without the option gradient_norm, and before the
  /// first such backward().
  double gradient_norm() const { return replica_.gradient_norm(); }

  std::vector<at::Tensor> parameters() const { return replica_.parameters(); }

  Module* operator->() { return module_.get(); }
  const Module* operator->() const { return module_.get(); }
  Module& operator*() { return *module_; }
  const Module& operator*() const { return *module_; }
  const std::shared_ptr<Module>& module() const { return module_; }
  const ProcessGroup& process_group() const { return replica_.process_group(); }

 private:
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
