#include "launcher/job/line_filter.h"

#include <algorithm>

namespace lockstep::inline internal {

bool LineFilter::selects(std::string_view line) const {
  return std::any_of(texts_.begin(), texts_.end(), [&](const std::string& text) {
    return line.find(text) != std::string_view::npos;
  });
}

LineFilter parse_line_filter(std::string_view list) {
  if (list.empty()) return {};
  std::vector<std::string> texts(1);
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i] != ',') {
      texts.back() += list[i];
    } else if (list.substr(i).starts_with(",,")) {
      texts.back() += ',';
      ++i;
    } else {
      texts.emplace_back();
    }
  }
  return LineFilter(std::move(texts));
}

}  // namespace lockstep::inline internal
