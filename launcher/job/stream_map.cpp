#include "launcher/job/stream_map.h"

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/base/internal/text.h"

namespace lockstep::inline internal {
namespace {

[[noreturn]] void refuse(const std::string& flag, const std::string& text) {
  throw UsageError(concat(flag, "='", text, "': give 0 (none), 1 (stdout), 2 (stderr) or 3 (both) ",
                          "for all workers, or by local rank as in 0:1,1:3"));
}

}  // namespace

Streams StreamMap::of(int local_rank) const {
  const auto found = by_local_rank_.find(local_rank);
  return found == by_local_rank_.end() ? default_ : found->second;
}

StreamMap parse_stream_map(const std::string& flag, const std::string& text) {
  const auto streams = [&](const std::string& number) {
    const auto value = parse_number<int>(number);
    if (!value || *value < 0 || *value > 3) refuse(flag, text);
    return Streams{(*value & 1) != 0, (*value & 2) != 0};
  };
  if (text.find(':') == std::string::npos) return StreamMap(streams(text));
  std::map<int, Streams> by_local_rank;
  for (const std::string& entry : comma_list(text)) {
    const auto colon = entry.find(':');
    if (colon == std::string::npos) refuse(flag, text);
    const auto local_rank = parse_number<int>(entry.substr(0, colon));
    if (!local_rank || *local_rank < 0) refuse(flag, text);
    by_local_rank[*local_rank] = streams(entry.substr(colon + 1));
  }
  return StreamMap(std::move(by_local_rank));
}

}  // namespace lockstep::inline internal
