#include "lockstep/profile/internal/step_summary.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// `exchange` ms waited in all steps together; arrivals in ms.
RankSteps rank_with(std::int64_t steps, int exchange, const std::vector<int>& arrivals,
                    std::int64_t clock = 7) {
  RankSteps rank{.steps = steps, .clock = clock};
  rank.total[static_cast<std::size_t>(StepPhase::kForward)] = milliseconds(40);
  rank.total[static_cast<std::size_t>(StepPhase::kExchange)] = milliseconds(exchange);
  for (const int arrival : arrivals) rank.arrivals.push_back(milliseconds(arrival));
  return rank;
}

TEST(StepSummary, OfNoStepsAndOfOneRankNamesNobody) {
  EXPECT_FALSE(summarize({rank_with(0, 0, {}), rank_with(0, 0, {})}).straggler);
  EXPECT_FALSE(summarize({rank_with(2, 10, {1, 2})}).straggler);
  EXPECT_EQ(describe(summarize({rank_with(2, 10, {1, 2})})),
            "2 steps, ms a step\n"
            "rank       data    forward   backward   exchange  optimizer      other       step\n"
            "   0       0.00      20.00       0.00       5.00       0.00       0.00      25.00\n");
}

TEST(StepSummary, TheLastToArriveIsTheStraggler) {
  // Rank 2 comes last in two of three steps, and waits in the exchange for another reason.
  const StepSummary summary =
      summarize({rank_with(3, 20, {10, 100, 205}), rank_with(3, 20, {12, 110, 200}),
                 rank_with(3, 90, {22, 130, 202})});
  EXPECT_EQ(summary.arrivals_compared, 3);
  EXPECT_EQ(summary.straggler, 2);
  EXPECT_EQ(summary.ranks[0].arrived_last, 1);
  EXPECT_EQ(summary.ranks[1].arrived_last, 0);
  EXPECT_EQ(summary.ranks[2].arrived_last, 2);
  EXPECT_EQ(summary.ranks[0].ahead, milliseconds(12 + 30 + 0) / 3);
  EXPECT_EQ(summary.ranks[2].ahead, milliseconds(3) / 3);
  EXPECT_EQ(summary.straggler_delay, (nanoseconds(milliseconds(42)) / 3 +
                                      nanoseconds(milliseconds(35)) / 3 - 2 * milliseconds(1)) /
                                         2);
  const std::string text = describe(summary);
  EXPECT_NE(text.find("straggler: rank 2, waited for "), std::string::npos) << text;
  EXPECT_NE(text.find("arrived last in 2 of 3\n"), std::string::npos) << text;
}

TEST(StepSummary, OnlyTheLastArrivalsOfAllAreCompared) {
  const StepSummary summary =
      summarize({rank_with(9, 0, {999, 10, 20}), rank_with(9, 0, {11, 21})});
  EXPECT_EQ(summary.arrivals_compared, 2);
  EXPECT_EQ(summary.ranks[1].arrived_last, 2);
  EXPECT_EQ(summary.straggler, 1);
}

TEST(StepSummary, WithSeveralClocksWhoWaitsLeastIsTheStraggler) {
  const StepSummary summary = summarize(
      {rank_with(2, 40, {1, 2}, 1), rank_with(2, 10, {1, 2}, 2), rank_with(2, 20, {9, 9}, 1)});
  EXPECT_EQ(summary.arrivals_compared, 0);
  EXPECT_EQ(summary.straggler, 1);
  EXPECT_EQ(summary.straggler_delay, (milliseconds(30) + milliseconds(10)) / 2 / 2);
  EXPECT_NE(describe(summary).find("rank 1, waited for 10.00 ms a step\n"), std::string::npos);
}

TEST(StepSummary, WhatIsNotNoticeableGetsNoName) {
  const std::string text = describe(summarize({rank_with(1, 0, {10}), rank_with(1, 0, {11})}));
  EXPECT_NE(text.find("no straggler\n"), std::string::npos) << text;
}

}  // namespace
}  // namespace lockstep
