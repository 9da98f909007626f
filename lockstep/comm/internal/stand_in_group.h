#pragma once

#include "lockstep/comm/process_group.h"

namespace lockstep::inline internal {

/// A group of this process alone that replaces `like` after its ranks failed: its collectives
/// return at once. It has the device, local rank and timeout of `like`; where that is empty, those
/// of a CPU.
ProcessGroup make_stand_in(const ProcessGroup& like);

/// Makes `group` the default one, in place of the one there is. Empty: none.
void replace_default_group(ProcessGroup group);

}  // namespace lockstep::inline internal
