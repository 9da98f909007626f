#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/rpc/internal/call_message.h"

namespace lockstep::rpc::inline internal {

/// LibTorch numbers contexts and messages by the rank of the process in its first session. In a
/// session with another rank these numbers could be those of another worker.
void init_autograd(int rank);
/// Errors: UsageError in a session with another rank than in the first.
void check_autograd(int rank);

/// Records that tensors leave this worker in a message of a context: their gradients will come
/// back.
void record_send(const AutogradTag& tag, std::vector<at::Tensor>& tensors);

/// Marks tensors as the recorded reply to a call with `arguments`. The path between them is on
/// other workers: a backward pass of this process alone that needs it throws UsageError.
void refuse_local_backward(const std::vector<at::Tensor>& answers,
                           const std::vector<at::Tensor>& arguments);

}  // namespace lockstep::rpc::inline internal
