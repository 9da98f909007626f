#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::inline internal {

/// The lines of a CSV text without their ends; a line's end within quotes is none. What follows the
/// last end is left out. Pure.
std::vector<std::string_view> csv_lines(std::string_view text);

/// The cells of a line, without their quotes. Pure.
std::vector<std::string> csv_cells(std::string_view line);

/// In quotes where it needs them. Pure.
std::string csv_cell(const std::string& text);

/// 9 digits, whole numbers whole. Pure.
std::string csv_number(double value);

}  // namespace lockstep::inline internal
