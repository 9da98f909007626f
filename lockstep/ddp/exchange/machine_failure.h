#pragma once

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/exchange/machine_groups.h"

namespace lockstep::inline internal {

/// Call it in a catch block, after an exchange in `machines.local` or `machines.partners` has
/// failed. Ends both groups, so that no rank waits for this one, and rethrows the error: a failed
/// collective as one of `group`, with the ranks of `group` that caused it. All ranks throw what the
/// first of them noted, as far as they reach the store.
/// Errors: PeerLost, TimeoutError; PeerFailed if another rank failed for a reason of its own; else
/// the error itself.
[[noreturn]] void rethrow_as_failure_of(const ProcessGroup& group, const MachineGroups& machines);

}  // namespace lockstep::inline internal
