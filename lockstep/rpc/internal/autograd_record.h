#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/rpc/internal/call_message.h"

namespace lockstep::rpc::inline internal {

/// LibTorch numbers contexts and messages by the rank that a process had in its first session: in
/// one of another rank they could be taken for another worker's.
void init_autograd(int rank);
/// Errors: UsageError in a session of another rank than the first.
void check_autograd(int rank);

/// That tensors leave this worker in a message of a context: gradients for them will come back.
void record_send(const AutogradTag& tag, std::vector<at::Tensor>& tensors);

/// That tensors are the answer, already recorded, to a call with `arguments`. The way between them
/// is on other workers: a backward pass of this process alone that needs it throws UsageError.
void refuse_local_backward(const std::vector<at::Tensor>& answers,
                           const std::vector<at::Tensor>& arguments);

}  // namespace lockstep::rpc::inline internal
