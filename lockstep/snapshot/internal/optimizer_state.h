#pragma once

#include <memory>
#include <string>

#include <ATen/core/ivalue.h>
#include <torch/optim/optimizer.h>

namespace lockstep::inline internal {

/// What Python's optimizer.state_dict() of the same optimizer gives: {"state": {0: {…}, …},
/// "param_groups": [{"lr": …, "params": [0, …]}, …]}. Parameters are numbered in the order of the
/// groups. Tensors share the optimizer's memory.
/// Errors: UsageError for optimizers that are not among kKnownOptimizers, and for a
/// ShardedOptimizer, whose consolidated_state_dict() is the same of all ranks together.
c10::IValue optimizer_state_dict(const torch::optim::Optimizer& optimizer);

/// Replaces the optimizer's state and hyperparameters by those of a state dict, of ours or of
/// Python's; tensors are copied. All or nothing. `source` names where the values are from. A
/// ShardedOptimizer takes this rank's share of it.
/// Errors: UsageError when groups, shapes, dtypes or the kind of optimizer differ, or when Python
/// used an option that LibTorch's optimizer does not have.
void load_optimizer_state_dict(torch::optim::Optimizer& optimizer, const c10::IValue& values,
                               const std::string& source = "the optimizer's state dict");

/// As load_optimizer_state_dict(), but tensors that nobody else holds, and that are on their
/// parameter's device, become the optimizer's own.
void adopt_optimizer_state_dict(torch::optim::Optimizer& optimizer, const c10::IValue& values,
                                const std::string& source = "the optimizer's state dict");

/// Throws what load_optimizer_state_dict would, and changes nothing.
void check_optimizer_state_dict(const torch::optim::Optimizer& optimizer, const c10::IValue& values,
                                const std::string& source = "the optimizer's state dict");

/// By the address of the parameter's implementation, as torch::optim::Optimizer::state().
using OptimizerStates =
    ska::flat_hash_map<void*, std::unique_ptr<torch::optim::OptimizerParamState>>;

/// As optimizer_state_dict(optimizer), with these states in the place of the optimizer's own.
c10::IValue optimizer_state_dict(const torch::optim::Optimizer& optimizer,
                                 const OptimizerStates& states);

}  // namespace lockstep::inline internal
