#pragma once

#include <optional>
#include <vector>

#include <ATen/core/ivalue.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/optim/internal/parameter_exchange.h"

namespace torch::optim {
class Optimizer;
}

namespace lockstep::inline internal {

/// ShardedState::consolidated_state_dict, for an optimizer whose states each rank has for the
/// parameters that it owns. One small reduction determines which states exist; then each owner
/// sends its tensors in a few large messages, and only the target allocates memory for all.
/// Collective.
/// Errors: UsageError for optimizers that snapshots do not know and for a target that is no rank;
/// else as Work::wait.
c10::IValue consolidate_state(const torch::optim::Optimizer& optimizer,
                              const std::vector<OwnedParameter>& parameters,
                              const ProcessGroup& group, std::optional<int> target);

}  // namespace lockstep::inline internal
