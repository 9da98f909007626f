#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"

namespace lockstep::inline internal {

/// Exchanges many small tensors as a few large messages: joins those of one dtype and device, but
/// for large ones, which are messages of their own and in place where they are contiguous, calls
/// exchange(message) for each such flat tensor, in the same order on every rank, and, where it
/// returns true, copies the message back to the tensors. Tensors of any strides. What is copied
/// back autograd does not notice: a forward pass that was before has saved what it read.
void exchange_flat(const std::vector<at::Tensor>& tensors,
                   const std::function<bool(const at::Tensor&)>& exchange);

/// Overwrites the tensors with those of rank `source`, a few large messages for many small tensors.
/// Tensors of any dtypes and strides; the same list of shapes and dtypes on every rank.
/// Errors: as Work::wait.
void broadcast_tensors(const ProcessGroup& group, const std::vector<at::Tensor>& tensors,
                       int source);

}  // namespace lockstep::inline internal
