#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::inline internal {

/// Memory as it lies, for a tensor without gaps.
at::Tensor flat_view(const at::Tensor& dense);

/// How many elements of a flat tensor a gradient of the parameter takes: two for a complex number.
std::int64_t flat_elements(const at::Tensor& parameter);

/// The elements of `flat` from `offset` on as a gradient of the parameter: in its strides where it
/// has no gaps, as autograd makes it, else contiguous; complex where the parameter is. It can be
/// detached in place, as optimizers do, although it is a view.
at::Tensor gradient_view(const at::Tensor& flat, std::int64_t offset, const at::Tensor& parameter);

/// Whether the gradient's bytes are those that gradient_view has for the parameter.
bool lies_as_gradient_view(const at::Tensor& gradient, const at::Tensor& parameter);

}  // namespace lockstep::inline internal
