#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"

namespace lockstep::inline internal {

/// Checks the loss of a backward pass with a weight. `operation`: the caller, for the message.
/// Errors: UsageError unless the loss is one number with a graph and the weight a number of
/// samples.
void check_weighted_loss(const char* operation, const ProcessGroup& group, const at::Tensor& loss,
                         double weight);

}  // namespace lockstep::inline internal
