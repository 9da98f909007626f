#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::inline internal {

/// Which lines are copied: those that hold one of some texts. Without texts, none.
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

/// Reads "apple,orange": a list of texts of which two commas are one comma of a text. Empty texts,
/// as in "apple,", select every line, as in torchrun.
LineFilter parse_line_filter(std::string_view list);

}  // namespace lockstep::inline internal
