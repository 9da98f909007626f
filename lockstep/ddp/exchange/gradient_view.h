#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::inline internal {

/// A 1-D view of a dense tensor in memory order.
at::Tensor flat_view(const at::Tensor& dense);

/// Number of elements of a flat tensor for a parameter's gradient: two per complex number.
std::int64_t flat_elements(const at::Tensor& parameter);

/// A view of `flat` from `offset` on as a gradient of the parameter: in the parameter's strides if
/// it is dense, as autograd creates gradients, else contiguous; complex if the parameter is. Unlike
/// other views it can be detached in place, as optimizers do.
at::Tensor gradient_view(const at::Tensor& flat, std::int64_t offset, const at::Tensor& parameter);

/// Whether a CPU gradient has the dtype, strides and bytes of a gradient_view of the parameter.
bool lies_as_gradient_view(const at::Tensor& gradient, const at::Tensor& parameter);

/// Whether only the parameter refers to the memory of its gradient, so it may be written to while
/// backward runs. Autograd makes what arrives the gradient without a copy. That may be a view of an
/// upstream gradient that will still be read (of parameter.unsqueeze(0) in a sum, for example), or
/// another parameter's gradient. `arrived`: what autograd passes to the parameter in the current
/// hook and holds for that time; undefined elsewhere.
bool has_one_owner(const at::Tensor& gradient, const at::Tensor& arrived);

/// Replaces the parameter's gradient by a copy if autograd made it an alias of `arrived` and that
/// memory has other owners. A gradient to which autograd has added in place stays where it is.
void replace_alias(const at::Tensor& parameter, const at::Tensor& arrived);

}  // namespace lockstep::inline internal
