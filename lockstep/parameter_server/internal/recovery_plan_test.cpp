#include "lockstep/parameter_server/internal/recovery_plan.h"

#include <gtest/gtest.h>

namespace lockstep::parameter_server {
namespace {

using Way = Recovery::Kind;
using Plans = std::vector<Recovery>;

TEST(RecoveryPlan, WhatHasLearnedNothingBegins) {
  const Plans expected(2, {.kind = Way::kBegin});
  EXPECT_EQ(plan_recovery({{}, {}}, true), expected);
  EXPECT_EQ(plan_recovery({{.updates = 0}, {}}, true), expected);
  EXPECT_EQ(plan_recovery({{.updates = 0}, {}}, false), expected);
}

TEST(RecoveryPlan, AnUpdateThatOneServerHasMadeAllMake) {
  const Plans expected(2, {.kind = Way::kKeep, .updates = 8});
  EXPECT_EQ(plan_recovery({{.updates = 8}, {.updates = 7, .has_next = true}}, true), expected);
  EXPECT_EQ(plan_recovery({{.updates = 8}, {.updates = 8}}, true), expected);
  const Plans first(2, {.kind = Way::kKeep, .updates = 1});
  EXPECT_EQ(plan_recovery({{.updates = 1}, {.updates = 0, .has_next = true}}, true), first);
}

TEST(RecoveryPlan, GradientsThatNoServerHasUsedAreHandedInAgain) {
  const Plans expected(2, {.kind = Way::kKeep, .updates = 7});
  EXPECT_EQ(plan_recovery({{.updates = 7, .has_next = true}, {.updates = 7}}, true), expected);
}

TEST(RecoveryPlan, SynchronousServersGoBackTogether) {
  const Plans expected(2, {.kind = Way::kSnapshot, .updates = 20});
  EXPECT_EQ(plan_recovery({{.updates = 31, .snapshots = {30, 20}}, {.snapshots = {20, 10}}}, true),
            expected);
  // A job that is started again.
  EXPECT_EQ(plan_recovery({{.snapshots = {20, 10}}, {.snapshots = {30, 20}}}, true), expected);
}

TEST(RecoveryPlan, ADeathAtTheFirstSnapshotCostsTheStepsAndNoJob) {
  const Plans expected(2, {.kind = Way::kBegin});
  EXPECT_EQ(plan_recovery({{.snapshots = {100}}, {}}, true), expected);
  EXPECT_EQ(plan_recovery({{.updates = 100, .snapshots = {100}}, {}}, true),
            Plans(2, {.kind = Way::kLost}))
      << "with what is in memory nothing is given up silently";
}

TEST(RecoveryPlan, WhatNobodyHasIsLost) {
  const Plans lost(2, {.kind = Way::kLost});
  EXPECT_EQ(plan_recovery({{.updates = 5}, {}}, true), lost);
  EXPECT_EQ(plan_recovery({{.updates = 5, .snapshots = {4}}, {.snapshots = {3}}}, true), lost);
  const Plans one_lost{{.kind = Way::kKeep, .updates = 5}, {.kind = Way::kLost}};
  EXPECT_EQ(plan_recovery({{.updates = 5}, {}}, false), one_lost);
}

TEST(RecoveryPlan, AsynchronousServersHaveEachTheirOwn) {
  const Plans expected{{.kind = Way::kKeep, .updates = 31},
                       {.kind = Way::kSnapshot, .updates = 30}};
  EXPECT_EQ(plan_recovery({{.updates = 31, .snapshots = {20}}, {.snapshots = {30, 20}}}, false),
            expected);
}

TEST(RecoveryPlan, TrainersGoOnWhereTheyWere) {
  using Steps = std::vector<std::int64_t>;
  const TrainerStanding first{.index = 0, .steps = 7};
  const TrainerStanding second{.index = 1, .steps = 9};
  EXPECT_EQ(plan_steps({first, {}}, {{6}, {6}}, true), (Steps{6, 6}));
  EXPECT_EQ(plan_steps({first, second}, {{6}, {5}}, false), (Steps{7, 9}));
  // A new one goes on for the lost one; where servers differ, with what all of them have.
  EXPECT_EQ(plan_steps({first, {}}, {{7, {7, 9}}, {7, {7, 8}}}, false), (Steps{7, 8}));
  EXPECT_EQ(plan_steps({first, {}}, {{7, {7, 9}}, {4}}, false), (Steps{7, 9}));
  // Ranks may have come in another order.
  EXPECT_EQ(plan_steps({{}, second}, {{6, {6, 9}}}, false), (Steps{6, 9}));
  EXPECT_EQ(plan_steps({{}, first}, {{7, {7, 9}}}, false), (Steps{9, 7}));
  // One more than there were, and a job that is started again: only the clocks are known.
  EXPECT_EQ(plan_steps({first, second, {}}, {{6, {7, 9}}}, false), (Steps{7, 9, 6}));
  EXPECT_EQ(plan_steps({{}, {}}, {{7}, {4}}, false), (Steps{4, 4}));
}

}  // namespace
}  // namespace lockstep::parameter_server
