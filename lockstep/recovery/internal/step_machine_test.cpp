#include "lockstep/recovery/internal/step_machine.h"

#include <utility>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using NextAction = RecoveryAction;

/// One rank, whose actions are answered by hand.
class MachineRank {
 public:
  /// MachineRank 1 of 2, in the training's first step.
  MachineRank() {
    expect(called::Join{.generation = 1, .rank = 1, .can_recover = true}, NextAction::kFormGroup);
    expect(outcome::Done{}, NextAction::kReturn);
    expect(called::Activate{}, NextAction::kAnnounceState);
    expect(outcome::Done{}, NextAction::kBeginInterval);
    expect(outcome::Done{}, NextAction::kReturn);
  }
  explicit MachineRank(RecoveryState begins_with) : state(std::move(begins_with)) {}

  void expect(const RecoveryEvent& event, NextAction action) {
    EXPECT_STREQ(name_of(step(state, event)), name_of(action));
  }

  void complete_step() { state.progress = StepProgress::kComplete; }

  /// From the loss of the group to the reports of generation 2.
  void meet_again() {
    expect(outcome::GroupLost{}, NextAction::kLeaveGroup);
    expect(outcome::Done{}, NextAction::kTakePlace);
    take_place();
  }
  void take_place() {
    expect(outcome::PlaceTaken{.generation = 2}, NextAction::kFormGroup);
    expect(outcome::Done{}, NextAction::kGatherReports);
  }

  void expect_reports(const RankReport& other, NextAction action) {
    const std::vector<RankReport> reports{other, state.report()};
    expect(outcome::ReportsGathered{.reports = reports, .rank = 1}, action);
  }

  /// Into the group of survivors, of itself alone.
  void finish_section_alone() {
    expect(called::RunOnSurvivors{}, NextAction::kRunSection);
    expect(outcome::GroupLost{}, NextAction::kLeaveGroup);
    expect(outcome::Done{}, NextAction::kTakePlace);
    finish_section_in_generation_2();
  }
  void finish_section_in_generation_2() {
    take_place();
    expect_reports({.is_new = true}, NextAction::kFormSurvivors);
    expect(outcome::Done{}, NextAction::kJoinSurvivors);
    expect(outcome::Done{}, NextAction::kRunSection);
    expect(outcome::Done{}, NextAction::kBarrier);
    expect(outcome::Done{}, NextAction::kBarrier);
    expect(outcome::Done{}, NextAction::kReturn);
    EXPECT_EQ(state.phase, RecoveryPhase::kSurvivors);
  }

  RecoveryState state;
};

RankReport at_boundary(std::int64_t boundaries) {
  return {.is_at_boundary = true,
          .boundaries = boundaries,
          .held = HeldState::kWhole,
          .state = {.generation = 1, .steps = boundaries}};
}

// Simulated seed 186.
TEST(StepMachine, ValuesOfSurvivorsAloneAreUncertain) {
  MachineRank rank;
  rank.complete_step();
  rank.finish_section_alone();
  rank.state.note_collective();
  EXPECT_EQ(rank.state.held, HeldState::kUncertain);
}

TEST(StepMachine, AnUpdateInTheGroupOfSurvivorsDiscardsTheStep) {
  MachineRank rank;
  rank.complete_step();
  rank.finish_section_alone();
  rank.expect(called::MoreUpdates{}, NextAction::kGoOnAlone);
  EXPECT_EQ(rank.state.phase, RecoveryPhase::kDiscarding);
}

// Simulated seed 1079: else its collectives met those of the others' next section.
TEST(StepMachine, ARankThatIsBehindGoesOnAloneToTheNextSection) {
  MachineRank behind;
  behind.complete_step();
  behind.expect(called::RunOnSurvivors{}, NextAction::kRunSection);
  behind.expect(outcome::Done{}, NextAction::kBarrier);
  behind.expect(outcome::Done{}, NextAction::kBarrier);
  MachineRank further;
  further.complete_step();
  further.expect(called::RunOnSurvivors{}, NextAction::kRunSection);
  further.expect(outcome::Done{}, NextAction::kBarrier);
  further.expect(outcome::Done{}, NextAction::kBarrier);
  further.expect(outcome::Done{}, NextAction::kReturn);
  further.expect(called::RunOnSurvivors{}, NextAction::kRunSection);

  behind.meet_again();
  further.meet_again();
  const RankReport of_behind = behind.state.report();
  behind.expect_reports(further.state.report(), NextAction::kGoOnAlone);
  behind.expect(outcome::Done{}, NextAction::kReturn);
  EXPECT_EQ(behind.state.phase, RecoveryPhase::kGroupLost);
  EXPECT_EQ(behind.state.sections, 1);
  further.expect_reports(of_behind, NextAction::kGatherReports);

  behind.expect(called::RunOnSurvivors{}, NextAction::kGatherReports);
  behind.expect_reports(further.state.report(), NextAction::kFormSurvivors);
}

// Simulated seed 322.
TEST(StepMachine, ARankThatIsBehindDoesNotPrintWhatAnotherHasPrinted) {
  MachineRank rank;
  rank.expect(called::RunOnSurvivors{}, NextAction::kRunSection);
  rank.expect(outcome::Done{}, NextAction::kBarrier);
  rank.expect(outcome::Done{}, NextAction::kBarrier);
  rank.meet_again();
  RankReport other = at_boundary(1);
  other.is_discarding = true;
  rank.expect_reports(other, NextAction::kGoOnAlone);
  EXPECT_FALSE(rank.state.is_main);
}

// Simulated seed 72085: else it trained an epoch too many.
// Simulated seed 94574: the rank that printed is lost, and others while the section runs again.
TEST(StepMachine, ASectionThatRunsAgainTwiceDoesNotPrintWhatAnotherHasPrinted) {
  MachineRank rank;
  rank.state.is_main = false;
  rank.expect(called::RunOnSurvivors{}, NextAction::kRunSection);
  rank.expect(outcome::Done{}, NextAction::kBarrier);
  rank.expect(outcome::Done{}, NextAction::kBarrier);
  for (int times = 0; times < 2; ++times) {
    rank.meet_again();
    rank.expect_reports({.is_new = true}, NextAction::kFormSurvivors);
    EXPECT_FALSE(rank.state.is_main);
    rank.expect(outcome::Done{}, NextAction::kJoinSurvivors);
    rank.expect(outcome::Done{}, NextAction::kRunSection);
    rank.expect(outcome::Done{}, NextAction::kBarrier);
  }
  rank.expect(outcome::Done{}, NextAction::kBarrier);
  rank.expect(outcome::Done{}, NextAction::kReturn);
  EXPECT_FALSE(rank.state.section_had_results);
  // Of the next section nobody can have printed.
  rank.expect(called::RunOnSurvivors{}, NextAction::kRunSection);
  EXPECT_TRUE(rank.state.is_main);
}

TEST(StepMachine, TheTrainingsEndComesWithTheState) {
  MachineRank rank;
  rank.expect(called::Boundary{.kind = BoundaryKind::kEpochEnd, .steps = 1}, NextAction::kBarrier);
  rank.meet_again();
  RankReport ended = at_boundary(2);
  ended.state.is_end = true;
  rank.expect_reports(ended, NextAction::kExchangeState);
  rank.expect(outcome::Done{}, NextAction::kTakeState);
  rank.expect(outcome::Done{}, NextAction::kJoinAll);
  // The other rank dies: this one alone knows that the training is over.
  rank.meet_again();
  rank.expect_reports({.is_at_boundary = true}, NextAction::kExchangeState);
  rank.expect(outcome::Done{}, NextAction::kJoinAll);
  rank.expect(outcome::Joined{.steps = 1}, NextAction::kKeepCopy);
  rank.expect(outcome::Done{}, NextAction::kBarrier);
  rank.expect(outcome::Done{}, NextAction::kBarrier);
  rank.expect(outcome::Done{}, NextAction::kAnnounceEnd);
  rank.expect(outcome::Done{}, NextAction::kReturn);
  EXPECT_EQ(rank.state.phase, RecoveryPhase::kFinishing);
}

// Every process that knew of the end has ended, one of them by a failure.
TEST(StepMachine, TheTrainingsEndComesFromACopyInMemory) {
  RecoveryState state;
  const auto expect = [&](const RecoveryEvent& event, NextAction action) {
    EXPECT_STREQ(name_of(step(state, event)), name_of(action));
  };
  const RankReport copy{.is_at_boundary = true,
                        .memory = {.generation = 1, .steps = 9, .is_end = true}};
  expect(called::Join{.generation = 2, .rank = 1, .can_recover = true}, NextAction::kAnnounceState);
  expect(outcome::Done{}, NextAction::kFormGroup);
  expect(outcome::Done{}, NextAction::kGatherReports);
  const std::vector<RankReport> joining{copy, state.report()};
  expect(outcome::ReportsGathered{.reports = joining, .rank = 1}, NextAction::kGoOnAlone);
  expect(outcome::Done{}, NextAction::kReturn);
  expect(called::Arrive{}, NextAction::kGatherReports);
  const std::vector<RankReport> met{copy, state.report()};
  expect(outcome::ReportsGathered{.reports = met, .rank = 1}, NextAction::kExchangeState);
  expect(outcome::Done{}, NextAction::kTakeState);
  expect(outcome::Done{}, NextAction::kJoinAll);
  expect(outcome::Joined{.steps = 8}, NextAction::kKeepCopy);
  expect(outcome::Done{}, NextAction::kBarrier);
  expect(outcome::Done{}, NextAction::kBarrier);
  expect(outcome::Done{}, NextAction::kAnnounceEnd);
  expect(outcome::Done{}, NextAction::kReturn);
  EXPECT_EQ(state.phase, RecoveryPhase::kFinishing);
}

// Simulated seed 236: else the others waited for it, or began anew.
TEST(StepMachine, AtTheEndItStaysWhereTheLauncherNeedsIt) {
  MachineRank rank;
  rank.expect(called::Boundary{.kind = BoundaryKind::kTrainingEnd, .steps = 1},
              NextAction::kCheckGeneration);
  rank.expect(outcome::Done{}, NextAction::kKeepCopy);
  rank.expect(outcome::Done{}, NextAction::kBarrier);
  rank.expect(outcome::Done{}, NextAction::kBarrier);
  rank.expect(outcome::GroupLost{}, NextAction::kAwaitVerdict);
  MachineRank needed = rank;
  rank.expect(outcome::Done{}, NextAction::kAnnounceEnd);
  needed.meet_again();
  needed.expect_reports({.is_at_boundary = true}, NextAction::kExchangeState);
  needed.expect(outcome::Done{}, NextAction::kJoinAll);
  needed.expect(outcome::Joined{.steps = 1}, NextAction::kKeepCopy);
}

TEST(StepMachine, AnUncertainLastStepComesAgain) {
  MachineRank rank;
  rank.complete_step();
  rank.expect(called::CollectiveFailed{}, NextAction::kLeaveGroup);
  rank.expect(outcome::Done{}, NextAction::kReturn);
  rank.expect(called::Boundary{.kind = BoundaryKind::kTrainingEnd, .steps = 1},
              NextAction::kTakePlace);
  rank.expect(outcome::PlaceTaken{.generation = 2}, NextAction::kFormGroup);
  rank.expect(outcome::Done{}, NextAction::kGatherReports);
  rank.expect_reports(at_boundary(0), NextAction::kExchangeState);
  rank.expect(outcome::Done{}, NextAction::kTakeState);
  rank.expect(outcome::Done{}, NextAction::kJoinAll);
  rank.expect(outcome::Joined{}, NextAction::kRemember);
  rank.expect(outcome::Done{}, NextAction::kReturn);
  EXPECT_EQ(rank.state.phase, RecoveryPhase::kReceived);
}

TEST(StepMachine, ALoopLeftInADiscardedStepDoesNotEndTheTraining) {
  MachineRank rank;
  rank.state.progress = StepProgress::kOpen;
  rank.expect(called::CollectiveFailed{}, NextAction::kLeaveGroup);
  rank.expect(outcome::Done{}, NextAction::kReturn);
  rank.expect(called::Boundary{.kind = BoundaryKind::kTrainingEnd}, NextAction::kRollBack);
  rank.expect(outcome::RolledBack{}, NextAction::kTakePlace);
  EXPECT_FALSE(rank.state.report().state.is_end);
}

TEST(StepMachine, APreemptedRankLeavesWhileItWaitsForAPlace) {
  MachineRank rank;
  rank.complete_step();
  rank.expect(called::CollectiveFailed{}, NextAction::kLeaveGroup);
  rank.expect(outcome::Done{}, NextAction::kReturn);
  rank.expect(called::Boundary{.steps = 1}, NextAction::kTakePlace);
  rank.expect(called::Leave{}, NextAction::kAnnounceEnd);
  rank.expect(outcome::Done{}, NextAction::kReturn);
  rank.expect(outcome::Failed{}, NextAction::kReturn);
  EXPECT_FALSE(rank.state.is_announced);
  EXPECT_FALSE(rank.state.is_active());
}

/// Rank 1 of 2, in a loop that repeats a step which throws: before its first step.
class LoopRank : public MachineRank {
 public:
  explicit LoopRank(RecoveryState options = {}) : MachineRank(std::move(options)) {
    expect(called::Join{.generation = 1, .rank = 1, .can_recover = true, .owns_loop = true},
           NextAction::kAnnounceState);
    expect(outcome::Done{}, NextAction::kFormGroup);
    expect(outcome::Done{}, NextAction::kGatherReports);
    expect_reports(new_one(), NextAction::kExchangeState);
    expect(outcome::Done{}, NextAction::kTakeState);
    expect(outcome::Done{}, NextAction::kJoinAll);
    expect(outcome::Joined{}, NextAction::kBeginInterval);
    expect(outcome::Done{}, NextAction::kReturn);
  }

  /// What a process reports that has nothing yet.
  static RankReport new_one() { return {.is_at_boundary = true}; }

  void begin_step() { state.progress = StepProgress::kOpen; }

  void pass_boundary(std::int64_t steps, NextAction action) {
    begin_step();
    expect(called::Boundary{.steps = steps}, action);
  }

  /// Its step has failed and changed parameters; until the reports of generation 2.
  void lose_state() {
    begin_step();
    expect(called::StepFailed{}, NextAction::kLeaveGroup);
    expect(outcome::Done{}, NextAction::kRollBack);
    expect(outcome::RolledBack{.is_whole = false}, NextAction::kTakePlace);
    expect(outcome::PlaceTaken{.generation = 2}, NextAction::kFormGroup);
    expect(outcome::Done{}, NextAction::kGatherReports);
  }

  void end_meeting(std::int64_t steps) {
    expect(outcome::Joined{.steps = steps}, NextAction::kBeginInterval);
    expect(outcome::Done{}, NextAction::kReturn);
    EXPECT_EQ(state.phase, RecoveryPhase::kTraining);
    EXPECT_EQ(state.boundaries, steps);
  }
};

TEST(StepMachine, AStepThatThrowsIsRolledBackAndComesAgain) {
  LoopRank rank;
  rank.begin_step();
  rank.expect(called::StepFailed{}, NextAction::kLeaveGroup);
  rank.expect(outcome::Done{}, NextAction::kRollBack);
  rank.expect(outcome::RolledBack{}, NextAction::kTakePlace);
  rank.expect(outcome::PlaceTaken{.generation = 2}, NextAction::kFormGroup);
  rank.expect(outcome::Done{}, NextAction::kGatherReports);
  rank.expect_reports(LoopRank::new_one(), NextAction::kExchangeState);
  rank.expect(outcome::Done{}, NextAction::kJoinAll);
  rank.end_meeting(0);
}

// A replica that is constructed writes to the parameters, their own values: rolled back, the state
// would count as lost.
TEST(StepMachine, WhatThrowsOutsideOfAStepLeavesTheState) {
  LoopRank rank;
  rank.expect(called::StepFailed{}, NextAction::kLeaveGroup);
  rank.expect(outcome::Done{}, NextAction::kTakePlace);
  EXPECT_EQ(rank.state.report().held, HeldState::kWhole);
}

// Else its collectives met those of a snapshot that another rank does not save.
TEST(StepMachine, WhatIsDueFollowsFromTheStateThatAllHave) {
  LoopRank rank({.memory_every = 2});
  rank.pass_boundary(1, NextAction::kCheckGeneration);
  rank.expect(outcome::Done{}, NextAction::kBeginInterval);
  rank.expect(outcome::Done{}, NextAction::kReturn);
  rank.pass_boundary(2, NextAction::kKeepCopy);
  rank.expect(outcome::Done{}, NextAction::kCheckGeneration);
  rank.expect(outcome::Done{}, NextAction::kBeginInterval);
  rank.expect(outcome::Done{}, NextAction::kReturn);
  rank.lose_state();
  RankReport other = LoopRank::new_one();
  other.memory = {.generation = 1, .steps = 1};
  rank.expect_reports(other, NextAction::kExchangeState);
  rank.expect(outcome::Done{}, NextAction::kTakeState);
  rank.expect(outcome::Done{}, NextAction::kJoinAll);
  rank.end_meeting(1);
  rank.pass_boundary(2, NextAction::kCompareReplicas);
  rank.expect(outcome::Done{}, NextAction::kKeepCopy);
}

TEST(StepMachine, ASnapshotCountsWhereItIsNewerThanTheCopyInMemory) {
  for (const std::int64_t loaded : {7, 3, -1}) {
    LoopRank rank;
    rank.lose_state();
    RankReport other = LoopRank::new_one();
    other.memory = {.generation = 1, .steps = 5};
    other.snapshot_steps = 7;
    rank.expect_reports(other, NextAction::kLoadSnapshot);
    if (loaded == 7) {
      rank.expect(outcome::SnapshotLoaded{.steps = loaded}, NextAction::kJoinAll);
      rank.end_meeting(7);
      continue;
    }
    // The newest is damaged.
    rank.expect(outcome::SnapshotLoaded{.steps = loaded}, NextAction::kExchangeState);
    rank.expect(outcome::Done{}, NextAction::kTakeState);
    rank.expect(outcome::Done{}, NextAction::kJoinAll);
    rank.end_meeting(5);
  }
}

TEST(StepMachine, AStateThatIsLostAtTheEndMakesStepsAgain) {
  LoopRank rank;
  rank.expect(called::StepFailed{}, NextAction::kLeaveGroup);
  rank.expect(outcome::Done{}, NextAction::kTakePlace);
  rank.expect(outcome::PlaceTaken{.generation = 2}, NextAction::kFormGroup);
  rank.expect(outcome::Done{}, NextAction::kGatherReports);
  rank.expect_reports(LoopRank::new_one(), NextAction::kExchangeState);
  rank.expect(outcome::Done{}, NextAction::kJoinAll);
  rank.end_meeting(0);
  rank.expect(called::Boundary{.kind = BoundaryKind::kTrainingEnd}, NextAction::kCompareReplicas);
  rank.expect(outcome::GroupLost{.state_is_lost = true}, NextAction::kLeaveGroup);
  rank.expect(outcome::Done{}, NextAction::kTakePlace);
  rank.expect(outcome::PlaceTaken{.generation = 3}, NextAction::kFormGroup);
  rank.expect(outcome::Done{}, NextAction::kGatherReports);
  RankReport other = LoopRank::new_one();
  other.snapshot_steps = 2;
  rank.expect_reports(other, NextAction::kLoadSnapshot);
  rank.expect(outcome::SnapshotLoaded{.steps = 2}, NextAction::kJoinAll);
  rank.end_meeting(2);
}

TEST(StepMachine, ProgramsLoadASnapshotThatIsNewerThanTheCopyInMemory) {
  for (const auto& [all_load, is_newer] : {std::pair(true, true), {true, false}, {false, true}}) {
    MachineRank rank{RecoveryState()};
    rank.expect(called::Join{.generation = 2, .rank = 1, .can_recover = true},
                NextAction::kAnnounceState);
    rank.expect(outcome::Done{}, NextAction::kFormGroup);
    rank.expect(outcome::Done{}, NextAction::kGatherReports);
    RankReport other{.is_new = true, .memory = {.generation = 1, .steps = 20}};
    rank.expect_reports(other, NextAction::kGoOnAlone);
    rank.expect(outcome::Done{}, NextAction::kReturn);
    rank.expect(called::Arrive{}, NextAction::kGatherReports);
    other.is_new = false;
    other.is_at_boundary = true;
    other.loads_snapshot = all_load;
    RankReport own = rank.state.report();
    own.loads_snapshot = true;
    const std::vector<RankReport> reports{other, own};
    rank.expect(outcome::ReportsGathered{.reports = reports, .rank = 1},
                all_load ? NextAction::kCompareSnapshot : NextAction::kExchangeState);
    if (!all_load) continue;
    // The newest may be damaged.
    rank.expect(outcome::SnapshotCompared{.is_newer = is_newer},
                is_newer ? NextAction::kJoinAll : NextAction::kExchangeState);
    if (!is_newer) {
      rank.expect(outcome::Done{}, NextAction::kTakeState);
      continue;
    }
    rank.expect(outcome::Joined{}, NextAction::kReturn);
    EXPECT_EQ(rank.state.phase, RecoveryPhase::kInactive);
    rank.expect(called::Activate{}, NextAction::kBeginInterval);
  }
}

TEST(StepMachine, NobodyBeginsAnewBehindAStep) {
  LoopRank rank;
  rank.lose_state();
  rank.expect_reports(LoopRank::new_one(), NextAction::kGiveUp);
}

TEST(StepMachine, AReplacementAtTheEndHasNoStepToMake) {
  MachineRank rank{RecoveryState()};
  rank.expect(called::Join{.generation = 2, .rank = 1, .can_recover = true, .owns_loop = true},
              NextAction::kAnnounceState);
  rank.expect(outcome::Done{}, NextAction::kFormGroup);
  rank.expect(outcome::Done{}, NextAction::kGatherReports);
  RankReport ended = at_boundary(4);
  ended.state.is_end = true;
  rank.expect_reports(ended, NextAction::kExchangeState);
  rank.expect(outcome::Done{}, NextAction::kTakeState);
  rank.expect(outcome::Done{}, NextAction::kJoinAll);
  rank.expect(outcome::Joined{.steps = 3}, NextAction::kKeepCopy);
  rank.expect(outcome::Done{}, NextAction::kBarrier);
  rank.expect(outcome::Done{}, NextAction::kBarrier);
  rank.expect(outcome::Done{}, NextAction::kAnnounceEnd);
  rank.expect(outcome::Done{}, NextAction::kReturn);
  EXPECT_EQ(rank.state.phase, RecoveryPhase::kEnded);
}

// The launcher has ended: there is no place any more.
TEST(StepMachine, WithoutAPlaceTheErrorIsTheProgramsOwn) {
  MachineRank rank;
  rank.expect(called::RunOnSurvivors{}, NextAction::kRunSection);
  EXPECT_TRUE(can_lose_group(rank.state));
  rank.expect(outcome::GroupLost{}, NextAction::kLeaveGroup);
  rank.expect(outcome::Done{}, NextAction::kTakePlace);
  EXPECT_FALSE(can_lose_group(rank.state));
}

// Copies of shards.

MachineRank sharded_rank() {
  MachineRank rank;
  rank.state.keeps_shards = true;
  rank.state.progress = StepProgress::kOpen;
  return rank;
}

// Behind a step whose copies are left.
MachineRank rank_with_copies() {
  MachineRank rank = sharded_rank();
  rank.complete_step();
  rank.expect(called::CompleteStep{}, NextAction::kKeepShards);
  rank.expect(outcome::Done{}, NextAction::kReturn);
  return rank;
}

TEST(StepMachine, AStepCountsWhenAllHaveLeftTheirShards) {
  MachineRank rank = sharded_rank();
  rank.complete_step();
  rank.expect(called::Boundary{.steps = 1}, NextAction::kKeepShards);
  EXPECT_EQ(rank.state.boundaries, 0);
  rank.expect(outcome::Done{}, NextAction::kCheckGeneration);
  EXPECT_EQ(rank.state.boundaries, 1);
}

TEST(StepMachine, WithoutTheLostRanksShardTheStepIsRolledBack) {
  MachineRank rank = sharded_rank();
  rank.complete_step();
  rank.expect(called::Boundary{.steps = 1}, NextAction::kKeepShards);
  rank.expect(outcome::GroupLost{.shards_are_kept = false}, NextAction::kLeaveGroup);
  EXPECT_EQ(rank.state.phase, RecoveryPhase::kDiscarding);
  rank.expect(outcome::Done{}, NextAction::kRollBack);
  rank.expect(outcome::RolledBack{}, NextAction::kTakePlace);
  EXPECT_EQ(rank.state.boundaries, 0);
}

TEST(StepMachine, WithTheLostRanksShardTheStepCounts) {
  MachineRank rank = sharded_rank();
  rank.complete_step();
  rank.expect(called::Boundary{.steps = 1}, NextAction::kKeepShards);
  rank.expect(outcome::GroupLost{.shards_are_kept = true}, NextAction::kLeaveGroup);
  rank.expect(outcome::Done{}, NextAction::kTakePlace);
  EXPECT_EQ(rank.state.boundaries, 1);
  EXPECT_EQ(rank.state.held, HeldState::kWhole);
}

TEST(StepMachine, ACompleteStepWithoutCopiesIsDiscarded) {
  MachineRank rank = sharded_rank();
  rank.complete_step();
  rank.expect(called::CollectiveFailed{}, NextAction::kLeaveGroup);
  EXPECT_EQ(rank.state.phase, RecoveryPhase::kDiscarding);
}

TEST(StepMachine, ASectionBehindAnUpdateBeginsWithCopies) {
  MachineRank rank = sharded_rank();
  rank.complete_step();
  rank.expect(called::RunOnSurvivors{}, NextAction::kKeepShards);
  MachineRank other = rank;
  rank.expect(outcome::Done{}, NextAction::kRunSection);
  other.expect(outcome::GroupLost{.shards_are_kept = false}, NextAction::kLeaveGroup);
  other.expect(outcome::Done{}, NextAction::kDecline);
  EXPECT_EQ(other.state.phase, RecoveryPhase::kDiscarding);
}

TEST(StepMachine, AStepWhoseCopiesAreLeftCountsWhateverFailsBehindThem) {
  MachineRank rank = rank_with_copies();
  rank.expect(called::CompleteStep{}, NextAction::kReturn);
  MachineRank other = rank;
  other.expect(called::CollectiveFailed{}, NextAction::kLeaveGroup);
  EXPECT_EQ(other.state.phase, RecoveryPhase::kGroupLost);
  // It leaves no more copies.
  rank.expect(called::RunOnSurvivors{}, NextAction::kRunSection);
  rank.expect(outcome::Done{}, NextAction::kBarrier);
  rank.expect(outcome::Done{}, NextAction::kBarrier);
  rank.expect(outcome::Done{}, NextAction::kReturn);
  rank.expect(called::Boundary{.steps = 1}, NextAction::kCheckGeneration);
  EXPECT_EQ(rank.state.boundaries, 1);
}

TEST(StepMachine, AProgramKnowsWhetherTheStepOfALostRankCounts) {
  for (const bool are_kept : {true, false}) {
    MachineRank rank = sharded_rank();
    rank.complete_step();
    rank.expect(called::CompleteStep{}, NextAction::kKeepShards);
    rank.expect(outcome::GroupLost{.shards_are_kept = are_kept}, NextAction::kLeaveGroup);
    rank.expect(outcome::Done{}, are_kept ? NextAction::kReturn : NextAction::kDecline);
    EXPECT_EQ(rank.state.has_lost_group(), true);
    EXPECT_EQ(rank.state.is_discarding(), !are_kept);
    rank.expect(called::CompleteStep{}, are_kept ? NextAction::kReturn : NextAction::kDecline);
    MachineRank survivor = rank;
    rank.expect(called::Boundary{.steps = 1},
                are_kept ? NextAction::kTakePlace : NextAction::kRollBack);
    EXPECT_EQ(rank.state.boundaries, are_kept ? 1 : 0);
    if (!are_kept) continue;
    survivor.expect(called::RunOnSurvivors{}, NextAction::kTakePlace);
    survivor.finish_section_in_generation_2();
    survivor.expect(called::CollectiveFailed{}, NextAction::kLeaveGroup);
    EXPECT_EQ(survivor.state.phase, RecoveryPhase::kGroupLost);
  }
}

TEST(StepMachine, AChangeBehindTheCopiesNeedsOthers) {
  MachineRank rank = rank_with_copies();
  MachineRank other = rank;
  other.expect(called::Boundary{.steps = 1, .has_new_shards = true}, NextAction::kKeepShards);
  MachineRank section = rank;
  section.expect(called::RunOnSurvivors{.has_new_shards = true}, NextAction::kKeepShards);
  section.expect(outcome::Done{}, NextAction::kRunSection);
  rank.complete_step();
  rank.expect(called::Boundary{.steps = 1}, NextAction::kKeepShards);
}

TEST(StepMachine, AChangeOfSurvivorsIsDiscarded) {
  MachineRank rank = rank_with_copies();
  rank.finish_section_alone();
  MachineRank section = rank;
  section.expect(called::RunOnSurvivors{.has_new_shards = true}, NextAction::kGoOnAlone);
  section.expect(outcome::Done{}, NextAction::kDecline);
  section.expect(called::Boundary{.steps = 1}, NextAction::kRollBack);
  MachineRank unchanged = rank;
  unchanged.expect(called::Boundary{.steps = 1}, NextAction::kGatherReports);
  EXPECT_EQ(unchanged.state.boundaries, 1);
  rank.expect(called::Boundary{.steps = 1, .has_new_shards = true}, NextAction::kRollBack);
  EXPECT_EQ(rank.state.boundaries, 0);
  rank.expect(outcome::RolledBack{}, NextAction::kGatherReports);
}

}  // namespace
}  // namespace lockstep
