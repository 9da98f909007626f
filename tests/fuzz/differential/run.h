#pragma once

#include "lockstep/comm/process_group.h"
#include "tests/fuzz/differential/failure.h"
#include "tests/fuzz/differential/plan.h"

namespace lockstep::differential {

/// Trains by the plan on this rank of the group, beside the oracle, to the end also where they
/// differ, so that ranks stay in step. Collective. Errors: what Lockstep throws.
Failure run(const Plan& plan, const ProcessGroup& group);

}  // namespace lockstep::differential
