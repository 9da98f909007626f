#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/snapshot/pickle_nodes.h"

namespace lockstep {

/// The tensor of these sizes and strides, counted in elements, over a storage. Undefined when any
/// element of it would lie outside of the storage, or a number makes no sense.
at::Tensor tensor_over(const PickleStorage& storage, std::int64_t offset,
                       const std::vector<std::int64_t>& sizes,
                       const std::vector<std::int64_t>& strides);

}  // namespace lockstep
