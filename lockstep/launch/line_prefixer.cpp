#include "lockstep/launch/line_prefixer.h"

#include <algorithm>

namespace lockstep {

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
      result.append(prefix_).append(begun_).append("\n");
      begun_.clear();
    }
  }
  return result;
}

std::string LinePrefixer::flush() {
  if (begun_.empty()) return {};
  std::string line = prefix_ + begun_ + "\n";
  begun_.clear();
  return line;
}

}  // namespace lockstep
