#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::inline internal {

/// Numbers of processors as the kernel writes them: "0-2,4". Ascending, without repetition. What is
/// no number or range is passed over.
std::vector<int> parse_cpu_list(std::string_view text);

}  // namespace lockstep::inline internal
