#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <optional>

#include "lockstep/os/machine/core_distance.h"

namespace lockstep::shm {

/// Notices when the system, or the host below it, moves ranks to processors that are nearer to each
/// other or farther apart, from how long it takes to fetch a line that a peer has just written.
/// Single times tell nothing, for they hold interruptions and lines that came on their own: of
/// each `kSamples` the median counts.
class DistanceWatch {
 public:
  static constexpr std::size_t kSamples = 15;

  /// What the samples since the last answer say; nothing while they are too few.
  std::optional<Placement> add(std::chrono::nanoseconds fetch_time);

 private:
  std::array<std::chrono::nanoseconds, kSamples> samples_{};
  std::size_t count_ = 0;
};

}  // namespace lockstep::shm
