#pragma once

#include <memory>
#include <string>

#include <ATen/core/ivalue.h>
#include <torch/optim/optimizer.h>

namespace lockstep::inline internal {

/// The state dict as of Python's optimizer.state_dict(): {"state": {0: {…}, …}, "param_groups":
/// [{"lr": …, "params": [0, …]}, …]}. Parameters are numbered in the order of the groups. Tensors
/// share the optimizer's memory.
/// Errors: UsageError for optimizers that are not among kKnownOptimizers, and for a
/// ShardedOptimizer: use its consolidated_state_dict().
c10::IValue optimizer_state_dict(const torch::optim::Optimizer& optimizer);

/// Replaces the optimizer's state and hyperparameters by copies of those in a state dict,
/// Lockstep's or Python's. All or nothing. A ShardedOptimizer loads this rank's shard.
/// `source`: where the values are from, for error messages.
/// Errors: UsageError if groups, shapes, dtypes or the kind of optimizer differ, or if Python used
/// an option that LibTorch's optimizer does not have.
void load_optimizer_state_dict(torch::optim::Optimizer& optimizer, const c10::IValue& values,
                               const std::string& source = "the optimizer's state dict");

/// As load_optimizer_state_dict(), but tensors with a single owner on their parameter's device
/// become the optimizer's, without a copy.
void adopt_optimizer_state_dict(torch::optim::Optimizer& optimizer, const c10::IValue& values,
                                const std::string& source = "the optimizer's state dict");

/// Throws what load_optimizer_state_dict() would throw; changes nothing.
void check_optimizer_state_dict(const torch::optim::Optimizer& optimizer, const c10::IValue& values,
                                const std::string& source = "the optimizer's state dict");

/// By address of the parameter's implementation, as torch::optim::Optimizer::state().
using OptimizerStates =
    ska::flat_hash_map<void*, std::unique_ptr<torch::optim::OptimizerParamState>>;

/// As optimizer_state_dict(optimizer), with these states instead of the optimizer's.
c10::IValue optimizer_state_dict(const torch::optim::Optimizer& optimizer,
                                 const OptimizerStates& states);

}  // namespace lockstep::inline internal
