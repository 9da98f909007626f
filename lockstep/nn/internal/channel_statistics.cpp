#include "lockstep/nn/internal/channel_statistics.h"

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

}  // namespace lockstep::inline internal
