#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"

namespace lockstep::inline internal {

/// Exchanges as functions that gradients go through, for layers that are cut over a group: f, g and
/// their kin of Megatron-LM (Shoeybi et al., arXiv:1909.08053). Dense tensors of any shape, alike
/// on all ranks but where said otherwise, of dtypes that the group reduces. Differentiable any
/// number of times. Collective, forward and backward. Threads: the one that uses the group. Errors:
/// as Work::wait.

/// `input` itself, which every rank has; backward sums the gradients of all ranks.
at::Tensor copy_to_group(const at::Tensor& input, const ProcessGroup& group);

/// The sum over all ranks; backward gives each rank the gradient as it is.
at::Tensor reduce_from_group(const at::Tensor& input, const ProcessGroup& group);

/// The ranks' inputs one behind the other along the last dimension, `size` long in all, cut as
/// cut_of says; backward gives each rank its part.
at::Tensor gather_from_group(const at::Tensor& input, std::int64_t size, const ProcessGroup& group);

/// This rank's part of `input`, cut along the last dimension; backward puts all parts together.
at::Tensor split_to_group(const at::Tensor& input, const ProcessGroup& group);

/// Which of `size` rows are a rank's: as equal as can be, the first ranks have one more.
struct Cut {
  std::int64_t begin = 0;
  std::int64_t size = 0;
};
Cut cut_of(std::int64_t size, int rank, int world_size);

}  // namespace lockstep::inline internal
