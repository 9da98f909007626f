#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::rpc {

/// Gradients through calls: torch.distributed.autograd's context. While it lives, calls that its
/// thread makes, and calls that those make, are recorded; backward() then goes through all workers
/// that took part, and leaves each one's gradients in the context there, not in .grad:
///
///   rpc::AutogradContext context;
///   auto outputs = encoder.call<at::Tensor>("forward", inputs);      // on another worker
///   context.backward({torch::mse_loss(outputs, targets)});
///   optimizer.step(context);                                          // DistributedOptimizer
///
/// torch::autograd::grad and Tensor::backward throw UsageError where they would have to go through
/// a call; second derivatives through calls are not supported. Of "Distributed Autograd Design" in
/// PyTorch's notes, by LibTorch's engine in its fast mode. Threads: that which made it; one at a
/// time on each. Lifetime: its end lets the other workers forget it, without waiting.
class AutogradContext {
 public:
  /// Errors: UsageError before rpc::init, and on a thread that has one already.
  AutogradContext();
  ~AutogradContext();
  AutogradContext(const AutogradContext&) = delete;
  AutogradContext& operator=(const AutogradContext&) = delete;

  /// The same on every worker: what functions there are told to find it by.
  std::int64_t id() const { return id_; }

  /// From `roots`, each of one element. With retain_graph it can be called again.
  /// Errors: UsageError for roots without a graph; PeerLost naming a worker that took part and is
  /// gone; TimeoutError; RemoteError is not told apart from an Error of this worker.
  void backward(const std::vector<at::Tensor>& roots, bool retain_graph = false);

  /// Of a parameter of this worker; undefined where none came.
  at::Tensor gradient(const at::Tensor& parameter) const;

 private:
  const std::int64_t id_;
};

/// In a function that was called: of the context `id`, on this worker; undefined where none came.
/// Errors: UsageError for one that is not known here.
at::Tensor gradient_in_context(std::int64_t id, const at::Tensor& parameter);

}  // namespace lockstep::rpc
