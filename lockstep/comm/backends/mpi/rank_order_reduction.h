#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace lockstep::mpi {

/// Reduces the parts in the given order, float16 and bfloat16 in float32, into `result`, which may
/// be one of the parts. MPI's own reductions guarantee neither the order nor equal bits on every
/// rank, and have no half precision.
void reduce_in_order(const std::vector<at::Tensor>& parts, const c10d::ReduceOp& op,
                     at::Tensor result);

}  // namespace lockstep::mpi
