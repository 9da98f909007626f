#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"

namespace lockstep::inline internal {

/// Differentiable collectives for layers that are sharded over a group: f, g and related functions.
/// Inputs are dense tensors of any shape, equal on all ranks unless stated otherwise, of dtypes
/// that the group reduces. Differentiable any number of times. Forward and backward are collective.
///
/// Source: Megatron-LM (Shoeybi et al., arXiv:1909.08053).
/// Threads: the thread that uses the group.
/// Errors: as Work::wait.

/// Returns `input`, which every rank has; backward sums the gradients of all ranks.
at::Tensor copy_to_group(const at::Tensor& input, const ProcessGroup& group);

/// The sum over all ranks; backward returns the gradient unchanged on each rank.
at::Tensor reduce_from_group(const at::Tensor& input, const ProcessGroup& group);

/// Concatenates the ranks' inputs along the last dimension to size `size`; cut_of() has the parts.
/// Backward returns each rank's part.
at::Tensor gather_from_group(const at::Tensor& input, std::int64_t size, const ProcessGroup& group);

/// This rank's part of `input` along the last dimension; backward concatenates all parts.
at::Tensor split_to_group(const at::Tensor& input, const ProcessGroup& group);

/// A rank's part of `size` rows. Sizes differ by at most one; the first ranks have the larger ones.
struct Cut {
  std::int64_t begin = 0;
  std::int64_t size = 0;
};
Cut cut_of(std::int64_t size, int rank, int world_size);

}  // namespace lockstep::inline internal
