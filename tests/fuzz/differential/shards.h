#pragma once

#include "lockstep/comm/process_group.h"
#include "tests/fuzz/differential/failure.h"
#include "tests/fuzz/differential/plan.h"

namespace lockstep::differential {

/// Trains by a plan in logical shards, on all ranks of the group, and compares every loss,
/// gradient, buffer and parameter, to the bit, with one process that adds up the shards along the
/// tree.
Failure run_in_shards(const Plan& plan, const ProcessGroup& group);

}  // namespace lockstep::differential
