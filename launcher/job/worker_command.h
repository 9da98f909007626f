#pragma once

#include <map>
#include <string>
#include <vector>

#include "launcher/job/launch_options.h"

namespace lockstep::inline internal {

/// Replaces each "${name}" that has a value; leaves others unchanged.
std::string substitute(const std::string& text, const std::map<std::string, std::string>& values);

/// argv of a worker. `python` runs Python programs, unbuffered.
std::vector<std::string> worker_command(const Program& program, const std::string& python,
                                        int local_rank);

}  // namespace lockstep::inline internal
