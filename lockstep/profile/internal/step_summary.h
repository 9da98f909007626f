#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <vector>

#include "lockstep/profile/step_timer.h"

namespace lockstep::inline internal {

/// What one rank has noted of some steps.
struct RankSteps {
  std::int64_t steps = 0;
  std::array<std::chrono::nanoseconds, kStepPhases> total{};
  /// The same where steady clocks are the same one.
  std::int64_t clock = 0;
  /// When it came to wait for the others, in the last steps of these, by its steady clock.
  std::vector<std::chrono::nanoseconds> arrivals = {};
};

/// Pure; the ranks have made the same number of steps.
StepSummary summarize(const std::vector<RankSteps>& ranks);

}  // namespace lockstep::inline internal
