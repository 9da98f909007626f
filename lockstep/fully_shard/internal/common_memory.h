#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"

namespace lockstep::inline internal {

/// A tensor of one dimension, of zeros, in memory that all ranks of the group map: what one writes
/// the others read, once the ranks have met in a collective. The group's ranks share memory.
/// `name`: of the memory, as /proc shows it. Collective.
/// Lifetime: the memory exists while a rank has a tensor in it.
/// Errors: SystemError where there is not enough memory, then PeerFailed on the others; as
/// Work::wait.
at::Tensor tensor_of_all_ranks(const ProcessGroup& group, std::int64_t elements,
                               at::ScalarType dtype, const std::string& name);

}  // namespace lockstep::inline internal
