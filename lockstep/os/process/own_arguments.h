#pragma once

#include <string>
#include <vector>

namespace lockstep::inline internal {

/// The arguments of this process, the program's name first. If that is a relative path,
/// /proc/self/exe is the file.
std::vector<std::string> own_arguments();

}  // namespace lockstep::inline internal
