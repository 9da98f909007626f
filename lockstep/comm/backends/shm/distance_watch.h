#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <optional>

#include "lockstep/os/machine/core_distance.h"

namespace lockstep::shm {

/// Notices when the system or the hypervisor moves ranks to processors that are closer to each
/// other or farther apart, from the time to fetch a cache line that a peer has just written. Single
/// times are unreliable (interrupts, lines that were already fetched), so it uses the median of
/// kSamples.
class DistanceWatch {
 public:
  static constexpr std::size_t kSamples = 15;

  /// Adds a sample. Returns the placement after kSamples samples, else nothing.
  std::optional<Placement> add(std::chrono::nanoseconds fetch_time);

 private:
  std::array<std::chrono::nanoseconds, kSamples> samples_{};
  std::size_t count_ = 0;
};

}  // namespace lockstep::shm
