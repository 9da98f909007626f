#include "lockstep/record/internal/csv_text.h"

#include <cmath>
#include <cstdio>

namespace lockstep::inline internal {

std::vector<std::string_view> csv_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  bool is_quoted = false;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') is_quoted = !is_quoted;
    if (text[i] != '\n' || is_quoted) continue;
    lines.push_back(text.substr(begin, i - begin));
    if (lines.back().ends_with('\r')) lines.back().remove_suffix(1);
    begin = i + 1;
  }
  return lines;
}

std::vector<std::string> csv_cells(std::string_view line) {
  std::vector<std::string> cells(1);
  bool is_quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const bool is_doubled = is_quoted && line.substr(i, 2) == "\"\"";
    if (is_doubled) {
      cells.back() += line[i++];
    } else if (line[i] == '"') {
      is_quoted = !is_quoted;
    } else if (line[i] == ',' && !is_quoted) {
      cells.emplace_back();
    } else {
      cells.back() += line[i];
    }
  }
  return cells;
}

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char letter : text)
    quoted += letter == '"' ? std::string(2, '"') : std::string{letter};
  return quoted + "\"";
}

std::string csv_number(double value) {
  if (std::isnan(value)) return "nan";
  constexpr double kMostWhole = 9007199254740992.0;  // 2^53
  const bool is_whole = std::abs(value) < kMostWhole && value == std::trunc(value);
  char text[32];
  std::snprintf(text, sizeof text, is_whole ? "%.0f" : "%.9g", value);
  return text;
}

}  // namespace lockstep::inline internal
