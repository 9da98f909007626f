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

/// Whether nothing but the parameter refers to the memory of its gradient, so that it may be
/// written to while backward runs. Autograd takes what arrives as the gradient without a copy, and
/// that may be a view of an upstream gradient that is yet to be read (of parameter.unsqueeze(0) in
/// a sum, for one), or of what another parameter has taken.
/// `arrived`: what autograd hands to the parameter in the hook that asks, and holds for that long;
/// undefined elsewhere.
bool has_one_owner(const at::Tensor& gradient, const at::Tensor& arrived);

/// Replaces the parameter's gradient by a copy where autograd has made it an alias of what arrived
/// and that memory has other owners. A gradient to which autograd has added in place stays where
/// the program has put it.
void replace_alias(const at::Tensor& parameter, const at::Tensor& arrived);

}  // namespace lockstep::inline internal
