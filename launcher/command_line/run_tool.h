#pragma once

#include <string>
#include <vector>

namespace lockstep::inline internal {

/// What `main` of `lockstep` and of each of its tools returns: the exit code of `command`, which
/// gets the words after the program's name. An exception becomes one line on stderr. A standard
/// stream that is closed is /dev/null meanwhile.
int run_tool(int argc, char** argv, int (*command)(const std::vector<std::string>& arguments));

}  // namespace lockstep::inline internal
