#pragma once

#include <string>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/internal/replica_state.h"

namespace lockstep::inline internal {

/// Checks that every rank has rank 0's `options` (lines of text) and a module with the same
/// parameters and buffers: names, order, shapes, dtypes, requires_grad and, for parameters,
/// strides, because gradients are exchanged in the parameter's layout. Collective.
/// Errors: UsageError of `operation` on every rank, with a rank that differs and the first line
/// that does.
void check_models_agree(const ProcessGroup& group, const ReplicaState& state,
                        const std::string& options, const char* operation);

}  // namespace lockstep::inline internal
