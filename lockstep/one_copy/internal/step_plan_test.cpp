#include "lockstep/one_copy/internal/step_plan.h"

#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/internal/concat.h"

namespace lockstep {
namespace {

using Stage = SharePosition::Stage;
constexpr std::uint32_t kChunksOfShare = 3;

std::vector<SharePosition> all_positions(std::uint64_t step) {
  std::vector<SharePosition> all = {
      {.step = step, .stage = Stage::kUnprepared},
      {.step = step, .stage = Stage::kComplete, .chunks = kChunksOfShare}};
  for (std::uint32_t chunks = 0; chunks <= kChunksOfShare; ++chunks) {
    all.push_back({.step = step, .stage = Stage::kSettled, .chunks = chunks});
    if (chunks == kChunksOfShare) continue;
    all.push_back({.step = step, .stage = Stage::kTorn, .chunks = chunks});
  }
  return all;
}

TEST(StepPlan, AWordHoldsAPosition) {
  for (const std::uint64_t step : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 35}) {
    for (SharePosition position : all_positions(step)) {
      EXPECT_EQ(SharePosition::of(position.word()), position);
      position.chunks = SharePosition::kMostChunks;
      EXPECT_EQ(SharePosition::of(position.word()), position);
    }
  }
}

TEST(StepPlan, APositionOfAnotherStepIsNone) {
  for (const SharePosition& position : all_positions(7)) {
    EXPECT_EQ(SharePosition::in_step(7, position.word()), position);
    EXPECT_EQ(SharePosition::in_step(8, position.word()), SharePosition{.step = 8});
  }
}

// Each rank in each state.
TEST(StepPlan, AStepHappensIfAndOnlyIfAllHaveHandedOver) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (int states = 0; states < 1 << (2 * ranks); ++states) {
      std::vector<RankInStep> seen;
      bool all_handed_over = true;
      bool one_is_gone_without = false;
      for (int rank = 0; rank < ranks; ++rank) {
        const int state = states >> (2 * rank);
        seen.push_back({.is_present = (state & 1) != 0, .has_handed_over = (state & 2) != 0});
        all_handed_over = all_handed_over && (state & 2) != 0;
        one_is_gone_without = one_is_gone_without || (state & 3) == 0;
      }
      SCOPED_TRACE(concat(ranks, " ranks, ", states));
      const Decision decided = decide_step(seen);
      EXPECT_EQ(decided == Decision::kUpdate, all_handed_over);
      EXPECT_EQ(decided == Decision::kVoid, one_is_gone_without);
      if (decided == Decision::kOpen) continue;
      // Who looks later sees more, and does not decide otherwise.
      for (RankInStep& rank : seen) {
        const RankInStep before = rank;
        rank.has_handed_over = before.has_handed_over || before.is_present;
        EXPECT_EQ(decide_step(seen), decided);
        rank = {.is_present = false, .has_handed_over = before.has_handed_over};
        EXPECT_EQ(decide_step(seen), decided);
        rank = before;
      }
    }
  }
}

TEST(StepPlan, AShareIsTakenOverUnlessItIsCompleteOrItsRunnerLives) {
  for (const SharePosition& position : all_positions(5)) {
    SCOPED_TRACE(concat("stage ", static_cast<int>(position.stage), ", ", position.chunks));
    const bool is_complete = position.stage == Stage::kComplete;
    EXPECT_EQ(plan_share(position, true), is_complete ? ShareTask::kNothing : ShareTask::kWait);
    EXPECT_EQ(plan_share(position, false),
              is_complete ? ShareTask::kNothing : ShareTask::kTakeOver);
  }
}

}  // namespace
}  // namespace lockstep
