#pragma once

#include <string>
#include <vector>

namespace lockstep::inline internal {

/// The words that this process was started with, the program's name first. Where that name is a
/// relative path, /proc/self/exe tells the file.
std::vector<std::string> own_arguments();

}  // namespace lockstep::inline internal
