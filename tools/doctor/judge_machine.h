#pragma once

#include <string>
#include <vector>

#include "tools/doctor/finding.h"
#include "tools/doctor/machine_facts.h"

namespace lockstep::inline internal {

/// What one machine's facts mean for a job, matter by matter. `machine`: its name in the findings.
/// `has_peers`: the job has other machines, which must reach it.
std::vector<Finding> judge_machine(const MachineFacts& facts, const std::string& machine,
                                   bool has_peers);

/// "1.5 GiB".
std::string size_text(std::uint64_t bytes);

}  // namespace lockstep::inline internal
