#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::rpc {

/// Records calls for backward passes across workers, as torch.distributed.autograd.context. During
/// its life, calls that its thread makes, and calls that these make, are recorded. backward() runs
/// through all workers that took part, and leaves each worker's gradients in its context, not in
/// .grad:
///
/// ```cpp
/// rpc::AutogradContext context;
/// auto outputs = encoder.call<at::Tensor>("forward", inputs);  // on another worker
/// context.backward({torch::mse_loss(outputs, targets)});
/// optimizer.step(context);  // a DistributedOptimizer
/// ```
///
/// torch::autograd::grad and Tensor::backward throw UsageError if they would have to run through a
/// call. Second derivatives through calls are not supported.
///
/// Source: "Distributed Autograd Design" in PyTorch's notes; LibTorch's engine in its fast mode.
/// Threads: use it on the thread that created it; one context at a time per thread.
/// Lifetime: the destructor lets the other workers discard their contexts, without waiting.
class AutogradContext {
 public:
  /// Errors: UsageError before rpc::init, and on a thread that already has one.
  AutogradContext();
  ~AutogradContext();
  AutogradContext(const AutogradContext&) = delete;
  AutogradContext& operator=(const AutogradContext&) = delete;

  /// Identifier of the context, the same on every worker; pass it to functions that need gradients.
  std::int64_t id() const { return id_; }

  /// Runs backward from `roots`, each a tensor of one element. With retain_graph it can run again.
  /// Errors: UsageError for roots without a graph; PeerLost that names a worker that took part and
  /// was lost; TimeoutError. A RemoteError cannot be distinguished from an Error of this worker.
  void backward(const std::vector<at::Tensor>& roots, bool retain_graph = false);

  /// The gradient of a parameter of this worker; undefined without one.
  at::Tensor gradient(const at::Tensor& parameter) const;

 private:
  const std::int64_t id_;
};

/// In a called function: the gradient of a parameter of this worker in context `id`; undefined
/// without one.
/// Errors: UsageError for an unknown context.
at::Tensor gradient_in_context(std::int64_t id, const at::Tensor& parameter);

}  // namespace lockstep::rpc
