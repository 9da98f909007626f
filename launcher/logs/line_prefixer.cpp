#include "launcher/logs/line_prefixer.h"

#include <algorithm>

namespace lockstep::inline internal {

std::string LinePrefixer::feed(std::string_view chunk) {
  std::string result;
  while (!chunk.empty()) {
    const std::size_t newline = chunk.find('\n');
    const std::size_t room = kLongestLineBytes - begun_.size();
    const bool complete = newline != std::string_view::npos && newline <= room;
    const std::size_t taken = complete ? newline : std::min(chunk.size(), room);
    begun_.append(chunk.substr(0, taken));
    chunk.remove_prefix(taken + (complete ? 1 : 0));
    if (complete || begun_.size() == kLongestLineBytes) {
      finish_line(result);
    }
  }
  return result;
}

std::string LinePrefixer::flush() {
  std::string line;
  if (!begun_.empty()) finish_line(line);
  return line;
}

void LinePrefixer::finish_line(std::string& lines) {
  if (!filter_ || filter_->selects(begun_)) lines.append(prefix_).append(begun_).append("\n");
  begun_.clear();
}

}  // namespace lockstep::inline internal
