#pragma once

#include <span>

#include "lockstep/recovery/internal/step_machine.h"

namespace lockstep::inline internal {

/// One step() of the machine. Its functions are in step_machine.cpp, those of copies of shards in
/// step_machine_shards.cpp, those of a recovery, until all ranks have a state, in
/// step_machine_meeting.cpp.
/// Lifetime: refers to the state.
class Stepper {
 public:
  using Action = RecoveryAction;
  using Call = RecoveryCall;

  explicit Stepper(RecoveryState& state) : state_(state) {}

  Action on(const called::Join& event);
  Action on(const called::Activate& event);
  Action on(const called::Deactivate& event);
  Action on(const called::CollectiveFailed& event);
  Action on(const called::MoreUpdates& event);
  Action on(const called::Boundary& event);
  Action on(const called::StepFailed& event);
  Action on(const called::Leave& event);
  Action on(const called::Arrive& event);
  Action on(const called::RunOnSurvivors& event);
  Action on(const called::CompleteStep& event);
  Action on(const outcome::Done& event);
  Action on(const outcome::GroupLost& event);
  Action on(const outcome::PlaceTaken& event);
  Action on(const outcome::ReportsGathered& event);
  Action on(const outcome::SnapshotLoaded& event);
  Action on(const outcome::SnapshotCompared& event);
  Action on(const outcome::Joined& event);
  Action on(const outcome::RolledBack& event);
  Action on(const outcome::Failed& event);

 private:
  Action await(Action action) { return state_.awaited = action; }
  Action end_call(Action how = Action::kReturn);

  bool is_survivor() const;
  Action discard_alone(Call call, Action how);
  bool has_new_shards() const;
  void renew_shards();
  Action keep_shards();
  Action after_keeping();
  Action lose_group_while_keeping(bool shards_are_kept);

  void commit();
  Action begin_commit();
  Action commit_next(Action done);
  Action leave_boundary();

  Action begin_loop(const called::Join& event);
  Action take_first_place();
  Action begin_recovery(bool at_boundary);
  Action meet();
  Action join_met(std::span<const RankReport> reports, int rank);
  Action agree_on_state(std::span<const RankReport> reports, int rank);
  void adopt_source();
  Action fail_without_state();
  Action split(std::span<const RankReport> reports, int rank);
  void choose_main(std::span<const RankReport> reports, int rank);
  Action join_survivors();

  Action begin_section();
  Action end_section();
  Action leave_group();
  Action after_leaving();
  Action after_barrier();

  RecoveryState& state_;
};

}  // namespace lockstep::inline internal
