#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::inline internal {

/// Declares that the backward pass of the operation that created `output` is collective: each rank
/// waits in it for the others.
void mark_collective_backward(const at::Tensor& output);

/// Whether a backward pass from `output` reaches such an operation. Does not see operations that
/// are recomputed in backward.
bool has_collective_backward(const at::Tensor& output);

}  // namespace lockstep::inline internal
