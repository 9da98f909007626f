#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace lockstep::mpi {

/// Combines the parts in the order given, float16 and bfloat16 in float32, and leaves the result in
/// `result`, which may be one of the parts. MPI's own reductions promise neither the order nor the
/// same bits on every rank, and know no half precision.
void reduce_in_order(const std::vector<at::Tensor>& parts, const c10d::ReduceOp& op,
                     at::Tensor result);

}  // namespace lockstep::mpi
