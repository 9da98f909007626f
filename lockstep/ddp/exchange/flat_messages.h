#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"

namespace lockstep::inline internal {

/// Exchanges many small tensors as a few large messages. It joins tensors of one dtype and device,
/// except large ones, which are exchanged alone, in place if contiguous. It calls exchange(message)
/// for each flat tensor, in the same order on every rank, and copies the message back to the
/// tensors if that returns true. Tensors may have any strides. Autograd does not notice the copy
/// back: an earlier forward pass has saved what it read.
void exchange_flat(const std::vector<at::Tensor>& tensors,
                   const std::function<bool(const at::Tensor&)>& exchange);

/// Overwrites the tensors with those of rank `source`, in a few large messages. Tensors of any
/// dtypes and strides; the same list of shapes and dtypes on every rank.
/// Errors: as Work::wait.
void broadcast_tensors(const ProcessGroup& group, const std::vector<at::Tensor>& tensors,
                       int source);

}  // namespace lockstep::inline internal
