#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::inline internal {

/// The tensors in order without repetitions: a module's parameters contain a tensor twice if two
/// modules register it.
std::vector<at::Tensor> each_once(const std::vector<at::Tensor>& tensors);

/// The parameters with a gradient, each once, for changing gradients in place. A gradient that
/// shares memory with another parameter's, which autograd sometimes does, gets memory of its own.
std::vector<at::Tensor> with_separate_gradients(const std::vector<at::Tensor>& parameters);

}  // namespace lockstep::inline internal
