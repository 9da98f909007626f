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

/// Makes the optimizer of parameters that a worker owns.
using MakeOptimizer =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor> parameters)>;

/// Before rpc::init, on every worker that owns parameters:
///
///   rpc::register_optimizer("sgd", [](std::vector<at::Tensor> parameters) {
///     return std::make_unique<torch::optim::SGD>(std::move(parameters), 0.1);
///   });
///
/// Errors: UsageError for a name that is taken.
void register_optimizer(const std::string& name, MakeOptimizer make);

/// Updates parameters on the workers that own them, each by an optimizer there:
/// torch.distributed.optim.DistributedOptimizer. Several of them may update one worker's
/// parameters: updates of a worker come one after the other.
class DistributedOptimizer {
 public:
  /// `parameters`: each refers to a tensor. The optimizers, one a worker, are made by what is
  /// registered there as `optimizer`. Errors: UsageError without parameters; else as rpc::call.
  DistributedOptimizer(const std::string& optimizer, const std::vector<RRef>& parameters);

  /// One update by the gradients of the context, on all workers at once; a parameter without one
  /// stays. Errors: as rpc::call; other workers' parameters may have been updated then.
  void step(const AutogradContext& context);

 private:
  std::vector<RRef> optimizers_;
};

}  // namespace lockstep::rpc
