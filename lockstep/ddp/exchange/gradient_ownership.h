#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::inline internal {

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
