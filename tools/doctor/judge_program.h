#pragma once

#include <string>
#include <vector>

#include "tools/doctor/finding.h"
#include "tools/doctor/machine_facts.h"

namespace lockstep::inline internal {

/// What the facts of the program, and of the Python under which it runs, mean: part of
/// judge_machine(). Adds to `findings`; nothing where none was named.
void judge_program(const MachineFacts& facts, const std::string& machine, bool has_peers,
                   std::vector<Finding>& findings);

/// "a, b".
std::string joined(const std::vector<std::string>& texts);

}  // namespace lockstep::inline internal
