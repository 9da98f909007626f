#pragma once

#include <functional>

#include <ATen/core/ivalue.h>

#include "lockstep/comm/process_group.h"

namespace lockstep::inline internal {

class KeptMemory;

/// Collective: rank `source`'s writable_value() on all ranks, without a copy on its way. `own`,
/// where it is not None, is this rank's own of the same structure, whose tensors are overwritten.
/// `kept`: memory that all ranks have, or null; what lies in it is not sent.
/// Nothing that arrives is executed. Errors: CorruptFile, UsageError for what is no such value; as
/// Work::wait.
c10::IValue broadcast_value(const ProcessGroup& group, const c10::IValue& own, int source,
                            const KeptMemory* kept = nullptr);

}  // namespace lockstep::inline internal
