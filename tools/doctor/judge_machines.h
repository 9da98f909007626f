#pragma once

#include <string>
#include <vector>

#include "tools/doctor/examined_machine.h"
#include "tools/doctor/finding.h"

namespace lockstep::inline internal {

/// What the facts of machines mean together: who reaches whom, and what is not the same on all.
/// `meeting`: the name of the place where they meet, on the first of them; empty: none was named.
std::vector<Finding> judge_machines(const std::vector<ExaminedMachine>& machines,
                                    const std::string& meeting);

}  // namespace lockstep::inline internal
