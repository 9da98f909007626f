#pragma once

#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep::inline internal {

/// The ranks of this machine, which share memory, as a group of their own. `machines`: the ranks of
/// `group` on each machine. Collective over `group`.
/// Errors: BackendUnavailable on all ranks if the ranks of a machine cannot share memory; else as
/// ProcessGroup::new_group.
ProcessGroup machine_group(const ProcessGroup& group,
                           const std::vector<std::vector<int>>& machines);

}  // namespace lockstep::inline internal
