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

/// ShardedState::consolidated_state_dict, for an optimizer that on each rank has the states of the
/// parameters that this rank owns. What there is of each state is agreed on in one small reduction;
/// then each owner sends its tensors, a few large messages, and no rank but the target makes room
/// for all. Collective. Errors: UsageError for optimizers that snapshots do not know and for a
/// target that is no rank; else as Work::wait.
c10::IValue consolidate_state(const torch::optim::Optimizer& optimizer,
                              const std::vector<OwnedParameter>& parameters,
                              const ProcessGroup& group, std::optional<int> target);

}  // namespace lockstep::inline internal
