#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/profile/step_phase.h"

namespace lockstep {

/// What one rank has noted of some steps.
struct RankSteps {
  std::int64_t steps = 0;
  std::array<std::chrono::nanoseconds, kStepPhases> total{};
  /// The same where steady clocks are the same one.
  std::int64_t clock = 0;
  /// When it came to wait for the others, in the last steps of these, by its steady clock.
  std::vector<std::chrono::nanoseconds> arrivals = {};
};

/// Where the time of some steps went, on all ranks.
struct StepSummary {
  using Time = std::chrono::nanoseconds;
  struct Rank {
    std::array<Time, kStepPhases> mean{};  ///< of a step, by StepPhase
    /// In how many of arrivals_compared it was the last to come.
    std::int64_t came_last = 0;
    /// Mean time from its arrival to that of the last.
    Time ahead{};
  };
  std::int64_t steps = 0;
  std::vector<Rank> ranks = {};
  /// Steps of which arrivals were compared; 0 where ranks have different clocks.
  std::int64_t arrivals_compared = 0;
  /// The rank that the others wait for: the one that comes last, by the mean over steps; where
  /// ranks have different clocks, the one that waits least in the exchange. None of one rank, and
  /// of no steps.
  std::optional<int> straggler = std::nullopt;
  /// How long: in a step, in the mean over the others.
  Time waited_for{};
};

/// Pure; the ranks have made the same number of steps.
StepSummary summarize(const std::vector<RankSteps>& ranks);

/// A table for people, a rank a line, in ms a step, and a line on the straggler.
std::string describe(const StepSummary& summary);

}  // namespace lockstep
