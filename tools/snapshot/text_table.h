#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace lockstep::inline internal {

/// Rows under a header; columns from `first_number` on are aligned to the right.
std::string text_table(const std::vector<std::vector<std::string>>& rows, std::size_t first_number);

/// Six digits: "0.000123457".
std::string number_text(double value);

/// Indented JSON and a newline; bytes that are no UTF-8 are replaced.
std::string json_text(const nlohmann::ordered_json& value);

}  // namespace lockstep::inline internal
