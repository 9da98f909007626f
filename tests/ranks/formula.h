#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"

namespace lockstep::testing {

/// The value that rank `rank` holds at `index`: 0 to 3, which every dtype and every sum or product
/// over four ranks represents exactly, without a period, so that a misplaced chunk shows.
std::int64_t value_at(int rank, std::int64_t index);

/// Rank `rank`'s tensor of `numel` elements, values from `index` = first on, where the default
/// group's backend takes tensors.
at::Tensor formula(int rank, std::int64_t numel, at::ScalarType dtype, std::int64_t first = 0);

/// What reducing all ranks' formula() must give.
at::Tensor reduced_formula(int world_size, std::int64_t numel, at::ScalarType dtype, ReduceOp op,
                           std::int64_t first = 0);

}  // namespace lockstep::testing
