#include "lockstep/one_copy/internal/step_plan.h"

#include <algorithm>

namespace lockstep::inline internal {

Decision decide_step(std::span<const RankInStep> ranks) {
  if (std::ranges::all_of(ranks, &RankInStep::has_handed_over)) return Decision::kUpdate;
  const bool is_hopeless = std::ranges::any_of(
      ranks, [](const RankInStep& rank) { return !rank.is_present && !rank.has_handed_over; });
  return is_hopeless ? Decision::kVoid : Decision::kOpen;
}

ShareTask plan_share(const SharePosition& position, bool runner_is_present) {
  if (position.stage == SharePosition::Stage::kComplete) return ShareTask::kNothing;
  return runner_is_present ? ShareTask::kWait : ShareTask::kTakeOver;
}

}  // namespace lockstep::inline internal
