#pragma once

#include <string>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/internal/replica_state.h"

namespace lockstep::inline internal {

/// Returns when every rank has rank 0's `options` (lines of text, each ended) and a module with the
/// same parameters and buffers, in names, order, shapes, dtypes, need of a gradient and, for
/// parameters, strides: gradients are exchanged in the parameter's own layout. Collective. Errors:
/// UsageError of `operation` on every rank, naming a rank that differs and the first line that
/// does.
void check_models_agree(const ProcessGroup& group, const ReplicaState& state,
                        const std::string& options, const char* operation);

}  // namespace lockstep::inline internal
