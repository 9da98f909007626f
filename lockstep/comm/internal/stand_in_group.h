#pragma once

#include "lockstep/comm/process_group.h"

namespace lockstep::inline internal {

/// A group of only this process that replaces `like` after its ranks failed: its collectives return
/// at once. It has the device, local rank and timeout of `like`; if that is empty, the CPU's.
ProcessGroup make_stand_in(const ProcessGroup& like);

/// Makes `group` the default group, in place of the current one. Empty: none.
void replace_default_group(ProcessGroup group);

}  // namespace lockstep::inline internal
