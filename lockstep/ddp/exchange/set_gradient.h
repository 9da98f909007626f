#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::inline internal {

/// Makes `average` the parameter's gradient: the tensor itself if `as_view` and it is on the
/// parameter's device, else its values. A gradient with a graph (backward(create_graph = true))
/// keeps it: its value becomes the average, and derivatives through it go to this rank's part, so
/// that the next backward pass, which averages again, gives the derivative of the average. A
/// gradient of another layout is unchanged.
void set_gradient(const at::Tensor& parameter, const at::Tensor& average, bool as_view);

}  // namespace lockstep::inline internal
