#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "lockstep/rpc/autograd_context.h"
#include "lockstep/rpc/rpc.h"

namespace lockstep::rpc {

/// Creates the optimizer of parameters that a worker owns.
using MakeOptimizer =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor> parameters)>;

/// Registers an optimizer; call it before rpc::init, on every worker that owns parameters:
///
/// ```cpp
/// rpc::register_optimizer("sgd", [](std::vector<at::Tensor> parameters) {
///   return std::make_unique<torch::optim::SGD>(std::move(parameters), 0.1);
/// });
/// ```
///
/// Errors: UsageError for a name that is already registered.
void register_optimizer(const std::string& name, MakeOptimizer make);

/// Updates parameters on the workers that own them, with one optimizer per worker, as
/// torch.distributed.optim.DistributedOptimizer. Several of them may update the parameters of one
/// worker, which runs their updates one after the other.
class DistributedOptimizer {
 public:
  /// Creates the optimizers, by the function that each owner registered as `optimizer`.
  /// `parameters`: references to tensors.
  /// Errors: UsageError without parameters; else as rpc::call.
  DistributedOptimizer(const std::string& optimizer, const std::vector<RRef>& parameters);

  /// Makes one update with the gradients of the context, on all workers at once. A parameter
  /// without a gradient stays unchanged.
  /// Errors: as rpc::call; parameters of other workers may then be updated.
  void step(const AutogradContext& context);

 private:
  std::vector<RRef> optimizers_;
};

}  // namespace lockstep::rpc
