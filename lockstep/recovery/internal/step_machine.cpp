#include "lockstep/recovery/internal/step_machine.h"

#include <utility>

#include "lockstep/recovery/internal/stepper.h"

namespace lockstep::inline internal {
namespace {

using Action = RecoveryAction;
using Call = RecoveryCall;
using Phase = RecoveryPhase;
using Stage = RecoveryStage;

}  // namespace

Action Stepper::end_call(Action how) {
  state_.call = Call::kNone;
  state_.stage = Stage::kProgram;
  state_.section = SectionProgress::kNone;
  state_.section_had_results = false;
  return await(how);
}

// Calls of the program.

Action Stepper::on(const called::Join& event) {
  if (event.owns_loop) return begin_loop(event);
  state_.generation = event.generation;
  state_.is_main = event.rank == 0;
  state_.call = Call::kJoin;
  if (event.is_standby) return await(Action::kAnnounceState);
  state_.stage = Stage::kMeeting;
  // A replacement: before the others meet it, so that it is kept where they fail again.
  if (event.can_recover && event.generation > 1) return await(Action::kAnnounceState);
  return await(Action::kFormGroup);
}

// With what the process begins, all ranks do where none holds a state.
Action Stepper::begin_loop(const called::Join& event) {
  state_.owns_loop = true;
  state_.generation = event.is_standby ? 0 : event.generation;
  state_.boundary_generation = -1;
  state_.is_at_boundary = true;
  state_.phase = Phase::kTraining;
  state_.call = Call::kBoundary;
  state_.boundary = BoundaryKind::kStep;
  state_.stage = Stage::kMeeting;
  // Before the first group, so that this process is kept where that fails.
  return event.can_recover ? await(Action::kAnnounceState) : take_first_place();
}

Action Stepper::take_first_place() {
  return await(state_.generation == 0 ? Action::kTakePlace : Action::kFormGroup);
}

Action Stepper::on(const called::Activate&) {
  if (state_.phase != Phase::kInactive) return Action::kReturn;
  state_.phase = Phase::kTraining;
  state_.held = HeldState::kWhole;
  state_.boundary_generation = static_cast<std::int64_t>(state_.generation);
  return await(state_.is_announced ? Action::kBeginInterval : Action::kAnnounceState);
}

Action Stepper::on(const called::Deactivate&) {
  state_.phase = Phase::kInactive;
  return await(state_.is_announced ? Action::kAnnounceEnd : Action::kReturn);
}

Action Stepper::on(const called::CollectiveFailed&) {
  if (!state_.is_active() || state_.call == Call::kRunOnSurvivors) return Action::kDecline;
  const bool is_in_step = state_.progress != StepProgress::kNone;
  if (state_.has_lost_group())
    return is_in_step || state_.is_discarding() ? Action::kReturn : Action::kDecline;
  // Outside of a step its result would be of a part of the ranks.
  if (!is_in_step) return Action::kDecline;
  // Without a copy of the lost rank's shard the step does not count.
  const bool is_complete =
      state_.progress == (state_.keeps_shards ? StepProgress::kKept : StepProgress::kComplete);
  if (is_complete) state_.held = HeldState::kUncertain;
  state_.phase = is_complete ? Phase::kGroupLost : Phase::kDiscarding;
  return leave_group();
}

Action Stepper::on(const called::MoreUpdates&) {
  if (!is_survivor() || state_.call != Call::kNone) return Action::kReturn;
  return discard_alone(Call::kNone, Action::kReturn);
}

Action Stepper::on(const called::Boundary& event) {
  if (!state_.is_active()) return Action::kReturn;
  if (state_.phase == Phase::kFinishing) {
    if (event.kind == BoundaryKind::kTrainingEnd) state_.phase = Phase::kEnded;
    return Action::kReturn;
  }
  state_.call = Call::kBoundary;
  state_.boundary = event.kind;
  state_.steps = event.steps;
  if (event.has_new_shards) renew_shards();
  switch (state_.phase) {
    case Phase::kReceived:
      return await(Action::kRollBack);
    case Phase::kDiscarding:
    case Phase::kJoining:
      return begin_recovery(/*at_boundary=*/true);
    case Phase::kTraining:
      return has_new_shards() ? keep_shards() : begin_commit();
    default:
      // No copy has the lost ranks' part of the change.
      if (event.has_new_shards)
        state_.phase = Phase::kDiscarding;
      else
        commit();
      return begin_recovery(/*at_boundary=*/true);
  }
}

Action Stepper::on(const called::StepFailed&) {
  if (!state_.is_announced || state_.phase != Phase::kTraining) return Action::kDecline;
  state_.call = Call::kBoundary;
  state_.boundary = BoundaryKind::kStep;
  state_.stage = Stage::kCommitting;
  // Outside of a step the state is that of the boundary, whatever was written to it: its own value.
  state_.phase = state_.progress == StepProgress::kNone ? Phase::kGroupLost : Phase::kDiscarding;
  return leave_group();
}

Action Stepper::on(const called::Leave&) {
  state_.phase = Phase::kEnded;
  return await(state_.is_announced ? Action::kAnnounceEnd : Action::kReturn);
}

Action Stepper::on(const called::Arrive&) {
  if (state_.phase != Phase::kJoining) return Action::kReturn;
  state_.call = Call::kArrive;
  state_.boundary = BoundaryKind::kStep;
  return begin_recovery(/*at_boundary=*/true);
}

Action Stepper::on(const called::RunOnSurvivors& event) {
  if (state_.is_discarding()) return Action::kDecline;
  // Also as a part of another section.
  if (!state_.is_active() || state_.call == Call::kRunOnSurvivors) return Action::kRunAlone;
  // Of the step: where it fails, the step does not count.
  if (state_.progress == StepProgress::kOpen) return Action::kRunInStep;
  if (event.has_new_shards && is_survivor())
    return discard_alone(Call::kRunOnSurvivors, Action::kDecline);
  state_.call = Call::kRunOnSurvivors;
  state_.section = SectionProgress::kRunning;
  if (state_.phase == Phase::kGroupLost) return begin_recovery(/*at_boundary=*/false);
  // What is behind the section that was interrupted no rank has printed.
  if (state_.phase == Phase::kSurvivors) state_.is_main = state_.is_first_survivor;
  if (event.has_new_shards) renew_shards();
  const bool keeps = state_.phase == Phase::kTraining && has_new_shards();
  return keeps ? keep_shards() : begin_section();
}

// A boundary.

void Stepper::commit() {
  ++state_.boundaries;
  state_.sections = 0;
  state_.progress = StepProgress::kNone;
  state_.is_end = state_.boundary == BoundaryKind::kTrainingEnd;
  state_.boundary_generation = static_cast<std::int64_t>(state_.generation);
}

Action Stepper::begin_commit() {
  commit();
  const std::int64_t steps = state_.steps;
  const bool has_stepped = std::exchange(state_.checked_steps, steps) != steps;
  const auto is_due = [&](int every) { return has_stepped && every > 0 && steps % every == 0; };
  state_.copy_is_due = is_due(state_.memory_every);
  state_.snapshot_is_due = is_due(state_.save_every);
  state_.stage = Stage::kCommitting;
  if (std::exchange(state_.compares_soon, false) || is_due(state_.check_replicas_every))
    return await(Action::kCompareReplicas);
  return commit_next(Action::kCompareReplicas);
}

// The order of all that ranks do at a boundary.
Action Stepper::commit_next(Action done) {
  switch (done) {
    case Action::kCompareReplicas:
      if (state_.copy_is_due) return await(Action::kKeepCopy);
      [[fallthrough]];
    case Action::kKeepCopy:
      if (state_.snapshot_is_due) return await(Action::kSaveSnapshot);
      [[fallthrough]];
    case Action::kSaveSnapshot:
      // Else a rank that is in no step could be an epoch ahead.
      if (state_.boundary == BoundaryKind::kEpochEnd) return await(Action::kBarrier);
      [[fallthrough]];
    case Action::kBarrier:
      return await(Action::kCheckGeneration);
    default:
      return leave_boundary();
  }
}

Action Stepper::leave_boundary() {
  if (state_.is_end) {
    state_.stage = Stage::kEnding;
    // A rank that fails when others have ended finds no rank with the state.
    return await(Action::kKeepCopy);
  }
  // At the training's end: the last step comes again.
  const bool continues = state_.boundary == BoundaryKind::kTrainingEnd && !state_.owns_loop;
  if (state_.call == Call::kArrive || continues) {
    state_.phase = Phase::kReceived;
    return await(Action::kRemember);
  }
  return await(Action::kBeginInterval);
}

// A section.

Action Stepper::begin_section() {
  state_.section = SectionProgress::kRunning;
  state_.stage = Stage::kSection;
  return await(Action::kRunSection);
}

Action Stepper::end_section() {
  ++state_.sections;
  return end_call();
}

Action Stepper::after_barrier() {
  switch (state_.stage) {
    case Stage::kCommitting:
      return commit_next(Action::kBarrier);
    case Stage::kSection:
      if (std::exchange(state_.section, SectionProgress::kComplete) == SectionProgress::kComplete)
        return end_section();
      return await(Action::kBarrier);
    case Stage::kEnding:
      state_.stage = Stage::kAllEnded;
      return await(Action::kBarrier);
    default:
      return await(Action::kAnnounceEnd);
  }
}

// Outcomes.

Action Stepper::on(const outcome::Done&) {
  switch (state_.awaited) {
    case Action::kAnnounceState:
      state_.is_announced = true;
      if (state_.stage == Stage::kMeeting) return take_first_place();
      return await(state_.call == Call::kJoin ? Action::kGoOnAlone : Action::kBeginInterval);
    case Action::kAnnounceEnd:
      state_.is_announced = false;
      if (state_.stage == Stage::kAllEnded) {
        const bool has_ended = state_.boundary == BoundaryKind::kTrainingEnd || state_.owns_loop;
        state_.phase = has_ended ? Phase::kEnded : Phase::kFinishing;
      }
      return end_call();
    case Action::kLeaveGroup:
      return after_leaving();
    case Action::kFormGroup:
      state_.has_group = true;
      if (state_.call == Call::kJoin && !state_.is_announced) return end_call();
      return await(Action::kGatherReports);
    case Action::kFormSurvivors:
      return join_survivors();
    case Action::kJoinSurvivors:
      state_.phase = Phase::kSurvivors;
      return begin_section();
    case Action::kGoOnAlone:
      if (state_.call == Call::kJoin) state_.phase = Phase::kJoining;
      if (state_.call != Call::kRunOnSurvivors) return end_call();
      return state_.phase == Phase::kDiscarding ? end_call(Action::kDecline) : end_section();
    case Action::kExchangeState:
      if (!state_.takes_state) {
        adopt_source();
        return await(Action::kJoinAll);
      }
      state_.held = HeldState::kNone;  // Until all of it is there.
      return await(Action::kTakeState);
    case Action::kTakeState:
      adopt_source();
      state_.sections = 0;
      state_.is_end = state_.source.standing.is_end;
      return await(Action::kJoinAll);
    case Action::kRunSection:
      return await(Action::kBarrier);
    case Action::kAwaitVerdict:
      return await(Action::kAnnounceEnd);
    case Action::kBarrier:
      return after_barrier();
    case Action::kKeepShards:
      return after_keeping();
    case Action::kKeepCopy:
      if (state_.stage == Stage::kEnding) return await(Action::kBarrier);
      [[fallthrough]];
    case Action::kCompareReplicas:
    case Action::kSaveSnapshot:
    case Action::kCheckGeneration:
      return commit_next(state_.awaited);
    default:
      return end_call();
  }
}

Action Stepper::on(const outcome::RolledBack& event) {
  state_.held = event.is_whole ? HeldState::kWhole : HeldState::kNone;
  state_.sections = 0;
  if (state_.phase == Phase::kDiscarding) return meet();
  // kReceived: what the program has done meanwhile does not count. The others have left this
  // boundary, but for the training's end.
  state_.phase = Phase::kTraining;
  if (state_.boundary == BoundaryKind::kTrainingEnd) return begin_commit();
  return leave_boundary();
}

Action Stepper::on(const outcome::GroupLost& event) {
  if (event.state_is_lost) state_.held = HeldState::kNone;
  if (state_.stage == Stage::kKeeping) return lose_group_while_keeping(event.shards_are_kept);
  // All ranks were at the end. Where one has failed there, its replacement needs the state; else
  // the others have ended.
  if (state_.stage == Stage::kAllEnded && state_.awaited == Action::kBarrier)
    return await(Action::kAwaitVerdict);
  if (state_.stage != Stage::kMeeting) state_.phase = Phase::kGroupLost;
  return leave_group();
}

Action Stepper::on(const outcome::Failed&) {
  return end_call();
}

Action Stepper::leave_group() {
  state_.has_group = false;
  return await(Action::kLeaveGroup);
}

Action Stepper::after_leaving() {
  switch (state_.stage) {
    case Stage::kProgram:
      return end_call();
    case Stage::kKeeping:
      return end_call(Action::kDecline);
    case Stage::kMeeting:
      return meet();
    case Stage::kSection:
      return begin_recovery(/*at_boundary=*/false);
    default:
      return begin_recovery(/*at_boundary=*/true);
  }
}

Standing RecoveryState::standing() const {
  if (held == HeldState::kNone) return {};
  return {.generation = boundary_generation, .steps = boundaries, .is_end = is_end};
}

RankReport RecoveryState::report() const {
  return {.is_new = call == Call::kJoin,
          .is_at_boundary = call != Call::kJoin && is_at_boundary,
          .is_discarding = phase == Phase::kDiscarding,
          .boundaries = boundaries,
          .sections = sections,
          .held = held,
          .state = standing(),
          .known_boundaries = boundary_generation < 0 ? -1 : boundaries};
}

bool can_lose_group(const RecoveryState& state) {
  // Not announced: the first generation of a job, and one that is not recovered.
  return state.awaited >= Action::kFormGroup && state.is_announced;
}

RecoveryAction step(RecoveryState& state, const RecoveryEvent& event) {
  Stepper stepper(state);
  return std::visit([&](const auto& one) { return stepper.on(one); }, event);
}

}  // namespace lockstep::inline internal
