#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/rpc/call_message.h"

namespace lockstep::rpc {

/// LibTorch numbers contexts and messages by the rank that a process had in its first session: in
/// one of another rank they could be taken for another worker's.
void init_autograd(int rank);
/// Errors: UsageError in a session of another rank than the first.
void check_autograd(int rank);

/// That tensors leave this worker in a message of a context: gradients for them will come back.
void record_send(const AutogradTag& tag, std::vector<at::Tensor>& tensors);

}  // namespace lockstep::rpc
