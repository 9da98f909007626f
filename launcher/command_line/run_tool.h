#pragma once

#include <string>
#include <vector>

namespace lockstep::inline internal {

/// The `main` of `lockstep` and of each tool: returns the exit code of `command`, which gets the
/// words after the program's name. Prints an exception as one line on standard error. Opens
/// /dev/null for a standard stream that is closed.
int run_tool(int argc, char** argv, int (*command)(const std::vector<std::string>& arguments));

}  // namespace lockstep::inline internal
