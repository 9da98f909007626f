#pragma once

#include "lockstep/comm/process_group.h"

namespace lockstep::inline internal {

/// A group of this process alone, which takes the place of `like` where its ranks cannot be
/// reached: collectives return at once. Of `like` it has device, local rank and timeout; where
/// `like` is empty, those of a CPU.
ProcessGroup make_stand_in(const ProcessGroup& like);

/// Makes `group` the default one, in place of the one there is. Empty: none.
void replace_default_group(ProcessGroup group);

}  // namespace lockstep::inline internal
