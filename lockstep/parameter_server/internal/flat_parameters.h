#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/parameter_server/internal/shard_plan.h"

/// Parameters laid end to end, as slices of them lie on servers. All of one dtype, contiguous.
namespace lockstep::parameter_server::inline internal {

std::int64_t count_elements(const std::vector<at::Tensor>& parameters);

/// A copy of the elements of a slice; none have the options of the first parameter, or Float.
at::Tensor read_slice(const std::vector<at::Tensor>& parameters, const Slice& slice);

/// `values`: [elements of the slice].
void write_slice(const std::vector<at::Tensor>& parameters, const Slice& slice,
                 const at::Tensor& values);

}  // namespace lockstep::parameter_server::inline internal
