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

ChannelStatistics combine_by_tree(std::span<ChannelStatistics> parts) {
  for (std::size_t width = 1; width < parts.size(); width *= 2) {
    for (std::size_t i = 0; i + width < parts.size(); i += 2 * width) {
      parts[i] = combine(parts[i], parts[i + width]);
    }
  }
  return parts.front();
}

}  // namespace lockstep::inline internal
