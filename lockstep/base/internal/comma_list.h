#pragma once

#include <string>
#include <vector>

namespace lockstep::inline internal {

/// What stands between the commas: "a,,b" are three, "" is none, and a comma at the end ends the
/// last.
std::vector<std::string> comma_list(const std::string& text);

}  // namespace lockstep::inline internal
