#pragma once

#include <functional>

#include <ATen/core/ivalue.h>

#include "lockstep/comm/process_group.h"

namespace lockstep::inline internal {

/// Collective: rank `source`'s writable_value() on all ranks, without a copy on its way. `own`,
/// where it is not None, is this rank's own of the same structure, whose tensors are overwritten.
/// Nothing that arrives is executed. Errors: CorruptFile, UsageError for what is no such value; as
/// Work::wait.
c10::IValue broadcast_value(const ProcessGroup& group, const c10::IValue& own, int source);

}  // namespace lockstep::inline internal
