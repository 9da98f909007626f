#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::inline internal {

/// Says that the backward pass of the operation which made `output` is collective: other ranks wait
/// in theirs for this rank's.
void mark_collective_backward(const at::Tensor& output);

/// Whether a backward pass from `output` reaches such an operation. What is recomputed in backward
/// is not looked into.
bool has_collective_backward(const at::Tensor& output);

}  // namespace lockstep::inline internal
