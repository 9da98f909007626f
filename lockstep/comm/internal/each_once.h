#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::inline internal {

/// The tensors in their order without repetitions: a module that lists one under two names lists it
/// twice among its parameters.
std::vector<at::Tensor> each_once(const std::vector<at::Tensor>& tensors);

/// The parameters that have a gradient, each once, to change their gradients in place. A gradient
/// that lies in the memory of another parameter's, which autograd does not always copy, gets memory
/// of its own.
std::vector<at::Tensor> with_separate_gradients(const std::vector<at::Tensor>& parameters);

}  // namespace lockstep::inline internal
