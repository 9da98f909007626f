#pragma once

#include <string>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// Collective: rank `source`'s text, on every rank. `name`: of the calls, for errors; empty:
/// theirs. Errors: as Work::wait.
std::string broadcast_text(const ProcessGroup& group, const std::string& text, int source,
                           const std::string& name = {});

}  // namespace lockstep
