#pragma once

#include <string>

#include "lockstep/comm/process_group.h"

namespace lockstep::inline internal {

/// Collective: rank `source`'s text, on every rank. `name`: of the calls, for errors; empty:
/// theirs. Errors: as Work::wait.
std::string broadcast_text(const ProcessGroup& group, const std::string& text, int source,
                           const std::string& name = {});

/// Collective. Errors: UsageError on all ranks where their texts differ, with `operation`, rank 0's
/// text and this rank's; as Work::wait.
void check_same_text(const ProcessGroup& group, const std::string& operation,
                     const std::string& text);

}  // namespace lockstep::inline internal
