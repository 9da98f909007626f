#include "lockstep/nn/internal/channel_statistics.h"

#include <cstddef>

namespace lockstep::inline internal {

ChannelStatistics combine(const ChannelStatistics& a, const ChannelStatistics& b) {
  if (b.count == 0) return a;
  if (a.count == 0) return b;
  const double count = a.count + b.count;
  const double difference = b.mean - a.mean;
  return {.count = count,
          .mean = a.mean + difference * (b.count / count),
          .squares = a.squares + b.squares + difference * difference * (a.count / count * b.count)};
}

ChannelStatistics combine_by_tree(std::vector<ChannelStatistics> parts) {
  while (parts.size() > 1) {
    std::vector<ChannelStatistics> pairs;
    for (std::size_t i = 0; i < parts.size(); i += 2) {
      pairs.push_back(i + 1 < parts.size() ? combine(parts[i], parts[i + 1]) : parts[i]);
    }
    parts = pairs;
  }
  return parts.front();
}

}  // namespace lockstep::inline internal
