#pragma once

#include <string>
#include <vector>

#include "tools/doctor/finding.h"
#include "tools/doctor/machine_facts.h"
#include "tools/doctor/reach.h"

namespace lockstep::inline internal {

/// The findings on each machine and on all together: which connections fail, and what differs.
/// Pure. `meeting`: the host of the rendezvous endpoint, which is on the first machine; empty:
/// none.
std::vector<Finding> judge_machines(const std::vector<ExaminedMachine>& machines,
                                    const std::string& meeting);

/// The findings on one machine, one or more a check. Pure. `machine`: its name in the findings.
/// `has_peers`: other machines of the job must reach it.
std::vector<Finding> judge_machine(const MachineFacts& facts, const std::string& machine,
                                   bool has_peers);

}  // namespace lockstep::inline internal
