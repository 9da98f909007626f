#pragma once

#include <functional>

#include <ATen/core/ivalue.h>

#include "lockstep/comm/process_group.h"

namespace lockstep::inline internal {

class KeptMemory;

/// Copies rank `source`'s writable_value() to all ranks, without an intermediate copy. `own`,
/// unless None, is this rank's value of the same structure, whose tensors are overwritten. `kept`:
/// memory that all ranks have, or null; its content is not sent. Nothing that arrives is executed.
/// Collective.
/// Errors: CorruptFile, UsageError for an invalid value; as Work::wait.
c10::IValue broadcast_value(const ProcessGroup& group, const c10::IValue& own, int source,
                            const KeptMemory* kept = nullptr);

}  // namespace lockstep::inline internal
