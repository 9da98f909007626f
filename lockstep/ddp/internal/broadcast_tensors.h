#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"

namespace lockstep::inline internal {

/// Overwrites the tensors with those of rank `source`, a few large messages for many small tensors.
/// Tensors of any dtypes and strides; the same list of shapes and dtypes on every rank.
/// Errors: as Work::wait.
void broadcast_tensors(const ProcessGroup& group, const std::vector<at::Tensor>& tensors,
                       int source);

}  // namespace lockstep::inline internal
