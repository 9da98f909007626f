#pragma once

#include <memory>

#include <ATen/core/ivalue.h>
#include <torch/optim/optimizer.h>

namespace lockstep::inline internal {

/// By the address of the parameter's implementation, as torch::optim::Optimizer::state().
using OptimizerStates =
    ska::flat_hash_map<void*, std::unique_ptr<torch::optim::OptimizerParamState>>;

/// As optimizer_state_dict(optimizer), with these states in the place of the optimizer's own.
c10::IValue optimizer_state_dict(const torch::optim::Optimizer& optimizer,
                                 const OptimizerStates& states);

}  // namespace lockstep::inline internal
