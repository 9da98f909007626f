// The copies that ranks leave of their shards, which decide whether a step counts.
#include "lockstep/recovery/internal/stepper.h"

namespace lockstep::inline internal {
namespace {

using Action = RecoveryAction;
using Call = RecoveryCall;
using Phase = RecoveryPhase;
using Stage = RecoveryStage;

}  // namespace

Action Stepper::on(const called::CompleteStep&) {
  if (state_.is_discarding()) return Action::kDecline;
  const bool is_between_calls = state_.phase == Phase::kTraining && state_.call == Call::kNone;
  const bool is_complete = state_.progress == StepProgress::kComplete;
  if (!state_.keeps_shards || !is_between_calls || !is_complete) return Action::kReturn;
  state_.call = Call::kCompleteStep;
  return keep_shards();
}

bool Stepper::is_survivor() const {
  return state_.phase == Phase::kGroupLost || state_.phase == Phase::kSurvivors;
}

// The survivors do not count what they do together. `how`: the end of the call.
Action Stepper::discard_alone(Call call, Action how) {
  const bool has_survivors = state_.phase == Phase::kSurvivors;
  state_.phase = Phase::kDiscarding;
  if (!has_survivors) return how;
  state_.call = call;
  return await(Action::kGoOnAlone);
}

// Since the newest copies.
bool Stepper::has_new_shards() const {
  const bool are_kept =
      state_.progress == StepProgress::kNone || state_.progress == StepProgress::kKept;
  return state_.keeps_shards && !are_kept;
}

// The program has changed them behind the copies of the step.
void Stepper::renew_shards() {
  if (state_.progress == StepProgress::kKept) state_.progress = StepProgress::kComplete;
}

Action Stepper::keep_shards() {
  state_.stage = Stage::kKeeping;
  return await(Action::kKeepShards);
}

Action Stepper::after_keeping() {
  state_.progress = StepProgress::kKept;
  switch (state_.call) {
    case Call::kBoundary:
      return begin_commit();
    case Call::kRunOnSurvivors:
      return begin_section();
    default:
      return end_call();
  }
}

// Without a copy of all shards the step is discarded, and a section in it declined.
Action Stepper::lose_group_while_keeping(bool shards_are_kept) {
  state_.phase = shards_are_kept ? Phase::kGroupLost : Phase::kDiscarding;
  if (shards_are_kept) state_.progress = StepProgress::kKept;
  if (state_.call == Call::kBoundary) {
    if (shards_are_kept) commit();
    state_.stage = Stage::kCommitting;
  } else if (shards_are_kept) {
    state_.stage = state_.call == Call::kRunOnSurvivors ? Stage::kSection : Stage::kProgram;
  }
  return leave_group();
}

}  // namespace lockstep::inline internal
