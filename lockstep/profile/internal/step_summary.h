#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <vector>

#include "lockstep/profile/step_timer.h"

namespace lockstep::inline internal {

/// Times of one rank over some steps.
struct RankSteps {
  std::int64_t steps = 0;
  std::array<std::chrono::nanoseconds, kStepPhases> total{};
  /// Identifies the steady clock; equal on ranks that share it.
  std::int64_t clock = 0;
  /// Arrival times in the last of these steps, by the rank's steady clock.
  std::vector<std::chrono::nanoseconds> arrivals = {};
};

/// Summarizes times of ranks that made equally many steps. Pure.
StepSummary summarize(const std::vector<RankSteps>& ranks);

}  // namespace lockstep::inline internal
