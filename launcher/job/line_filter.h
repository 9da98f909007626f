#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::inline internal {

/// Selects the lines that contain one of some texts; without texts none.
class LineFilter {
 public:
  LineFilter() = default;
  explicit LineFilter(std::vector<std::string> texts) : texts_(std::move(texts)) {}

  bool selects(std::string_view line) const;
  bool selects_none() const { return texts_.empty(); }
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  std::vector<std::string> texts_;
};

/// Parses "apple,orange": texts separated by commas; two commas are one comma of a text. As in
/// torchrun an empty text, as in "apple,", selects every line.
LineFilter parse_line_filter(std::string_view list);

}  // namespace lockstep::inline internal
