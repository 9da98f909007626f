#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::inline internal {

/// Makes `average` the parameter's gradient: the tensor itself, where asked for and where it lies
/// on the parameter's device, else its values. A gradient with a graph of its own
/// (backward(create_graph = true)) keeps it: its value becomes the average, and what is
/// differentiated through it goes to this rank's share, so that the next backward pass, which
/// averages again, gives the derivative of the average. A gradient of another layout stays.
void set_gradient(const at::Tensor& parameter, const at::Tensor& average, bool as_view);

}  // namespace lockstep::inline internal
