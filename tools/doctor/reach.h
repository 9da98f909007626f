#pragma once

#include "lockstep/base/internal/deadline.h"
#include "tools/doctor/machine_facts.h"

namespace lockstep::inline internal {

/// Calls all other machines at all of their addresses, and answers their calls, until each has
/// answered and called or the deadline passes. They may begin at different times.
/// Errors: SystemError.
ReachReport reach(const ReachPlan& plan, const Deadline& deadline);

}  // namespace lockstep::inline internal
