#pragma once

#include <map>
#include <string>
#include <vector>

#include "launcher/job/launch_options.h"

namespace lockstep::inline internal {

/// Replaces each "${name}" for which there is a value; leaves others as they are.
std::string substitute(const std::string& text, const std::map<std::string, std::string>& values);

/// argv of a worker. Programs in Python are run by `python`, unbuffered.
std::vector<std::string> worker_command(const Program& program, const std::string& python,
                                        int local_rank);

}  // namespace lockstep::inline internal
