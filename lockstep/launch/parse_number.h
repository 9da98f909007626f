#pragma once

#include <optional>
#include <string_view>

namespace lockstep {

/// The integer that the whole text is, or nothing.
std::optional<int> parse_integer(std::string_view text);

/// The finite number that the whole text is, or nothing.
std::optional<double> parse_decimal(std::string_view text);

}  // namespace lockstep
