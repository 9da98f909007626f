#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::inline internal {

/// Rows under a header, in columns as wide as they need; those from `first_number` on to the right.
std::string text_table(const std::vector<std::vector<std::string>>& rows, std::size_t first_number);

/// "1.3 GB", "512 B".
std::string size_text(std::uint64_t bytes);

/// In six digits: "0.000123457".
std::string number_text(double value);

}  // namespace lockstep::inline internal
