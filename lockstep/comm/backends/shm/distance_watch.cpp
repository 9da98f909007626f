#include "lockstep/comm/backends/shm/distance_watch.h"

#include <algorithm>

namespace lockstep::shm {
namespace {

// With the reading of the clock around it a fetch takes 20 to 60 ns from a core that shares the
// cache, 200 and more from another.
constexpr std::chrono::nanoseconds kFar{110};

}  // namespace

std::optional<Placement> DistanceWatch::add(std::chrono::nanoseconds fetch_time) {
  samples_[count_++] = fetch_time;
  if (count_ < kSamples) return std::nullopt;
  count_ = 0;
  const auto middle = samples_.begin() + kSamples / 2;
  std::nth_element(samples_.begin(), middle, samples_.end());
  return *middle > kFar ? Placement::kFar : Placement::kNear;
}

}  // namespace lockstep::shm
