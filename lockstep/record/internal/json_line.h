#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace lockstep::inline internal {

/// A line of a .jsonl file, with its newline. Replaces bytes that are not UTF-8.
inline std::string json_line(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep::inline internal
