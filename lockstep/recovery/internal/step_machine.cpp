#include "lockstep/recovery/internal/step_machine.h"

#include <algorithm>
#include <utility>

namespace lockstep::inline internal {
namespace {

using Action = RecoveryAction;
using Call = RecoveryCall;
using Phase = RecoveryPhase;
using Stage = RecoveryStage;

/// One step() of the machine.
class Stepper {
 public:
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

Action Stepper::on(const called::CompleteStep&) {
  if (state_.is_discarding()) return Action::kDecline;
  const bool is_between_calls = state_.phase == Phase::kTraining && state_.call == Call::kNone;
  const bool is_complete = state_.progress == StepProgress::kComplete;
  if (!state_.keeps_shards || !is_between_calls || !is_complete) return Action::kReturn;
  state_.call = Call::kCompleteStep;
  return keep_shards();
}

// Shards.

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

// Recovery.

Action Stepper::begin_recovery(bool at_boundary) {
  ++state_.recoveries;
  state_.is_at_boundary = at_boundary;
  state_.stage = Stage::kMeeting;
  if (state_.phase == Phase::kDiscarding) {
    state_.progress = StepProgress::kNone;
    return await(Action::kRollBack);
  }
  if (state_.phase == Phase::kJoining) state_.progress = StepProgress::kNone;
  return meet();
}

Action Stepper::meet() {
  return await(state_.has_group ? Action::kGatherReports : Action::kTakePlace);
}

Action Stepper::on(const outcome::PlaceTaken& event) {
  state_.generation = event.generation;
  return await(Action::kFormGroup);
}

bool is_in_section(const RankReport& report) {
  return !report.is_at_boundary && !report.is_new;
}

auto position_of(const RankReport& report) {
  return std::pair(report.boundaries, report.sections);
}

// The ranks that finish a section together: all that are in one, once none of them is behind
// another rank. One that is behind has passed its section, and comes to the next or to a boundary.
std::vector<int> find_survivors(std::span<const RankReport> reports) {
  const RankReport& furthest = *std::ranges::max_element(reports, {}, position_of);
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    if (!is_in_section(reports[rank])) continue;
    if (position_of(reports[rank]) < position_of(furthest)) return {};
    ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

Action Stepper::on(const outcome::ReportsGathered& event) {
  if (state_.call == Call::kJoin) return join_met(event.reports, event.rank);
  if (std::ranges::all_of(event.reports, &RankReport::is_at_boundary)) {
    state_.is_main = event.rank == 0;
    return agree_on_state(event.reports, event.rank);
  }
  return split(event.reports, event.rank);
}

// A new process. Where nobody has anything of a training, all begin one.
Action Stepper::join_met(std::span<const RankReport> reports, int rank) {
  state_.is_main = rank == 0;
  const auto has_begun = [](const RankReport& report) {
    return report.state.exists() || report.memory.exists() || report.is_at_boundary;
  };
  if (std::ranges::none_of(reports, has_begun)) return end_call();
  // As on the others: groups are formed by all.
  state_.survivors = find_survivors(reports);
  return await(state_.survivors.empty() ? Action::kGoOnAlone : Action::kFormSurvivors);
}

Action Stepper::agree_on_state(std::span<const RankReport> reports, int rank) {
  const auto holds_whole = [](const RankReport& report) {
    return report.held == HeldState::kWhole;
  };
  // Without a whole state an uncertain one counts: of these each rank has values of its own.
  const bool some_whole = std::ranges::any_of(reports, holds_whole);
  std::vector<Sources> sources;
  for (const RankReport& report : reports) {
    sources.push_back({.state = holds_whole(report) || !some_whole ? report.state : Standing(),
                       .memory = report.memory,
                       .snapshot_steps = report.snapshot_steps,
                       .known_steps = report.known_boundaries});
  }
  state_.source = choose_source(sources);
  if (state_.source.kind == SourceChoice::Kind::kOwn && !some_whole)
    state_.source.kind = SourceChoice::Kind::kRank;
  const RankReport& own = reports[static_cast<std::size_t>(rank)];
  state_.is_source = state_.source.rank == rank;
  const bool has_it = holds_whole(own) && own.state == state_.source.standing;
  const bool holds_none =
      std::ranges::all_of(reports, [](const RankReport& report) { return !report.state.exists(); });
  const bool all_load = holds_none && std::ranges::all_of(reports, &RankReport::loads_snapshot);
  if (all_load && state_.source.kind == SourceChoice::Kind::kMemory)
    return await(Action::kCompareSnapshot);
  state_.starts_over = all_load;
  if (state_.starts_over) return await(Action::kJoinAll);
  switch (state_.source.kind) {
    case SourceChoice::Kind::kOwn:
      return await(Action::kJoinAll);
    case SourceChoice::Kind::kRank:
      state_.takes_state = !state_.is_source && !has_it;
      return await(Action::kExchangeState);
    case SourceChoice::Kind::kSnapshot:
      return await(Action::kLoadSnapshot);
    case SourceChoice::Kind::kMemory:
      state_.takes_state = true;
      return await(Action::kExchangeState);
    case SourceChoice::Kind::kBegin:
      state_.source.standing = {.generation = 0, .steps = 0};
      state_.takes_state = !state_.is_source;
      return await(Action::kExchangeState);
    case SourceChoice::Kind::kLost:
      return fail_without_state();
  }
  return fail_without_state();
}

// This rank has the state that all agree on.
void Stepper::adopt_source() {
  state_.boundaries = state_.source.standing.steps;
  state_.boundary_generation = state_.source.standing.generation;
  state_.held = HeldState::kWhole;
}

Action Stepper::fail_without_state() {
  return end_call(state_.owns_loop ? Action::kGiveUp : Action::kFailStateLost);
}

Action Stepper::on(const outcome::SnapshotLoaded& event) {
  Standing& standing = state_.source.standing;  // Of the copy in memory, which may be newer.
  if (event.steps >= 0 && event.steps >= standing.steps) {
    standing = {.generation = 0, .steps = event.steps};
    adopt_source();
    state_.sections = 0;
    state_.is_end = false;
    return await(Action::kJoinAll);
  }
  if (!standing.exists()) return fail_without_state();
  state_.source.kind = SourceChoice::Kind::kMemory;
  state_.takes_state = true;
  return await(Action::kExchangeState);
}

// Of the snapshots that the programs are about to load.
Action Stepper::on(const outcome::SnapshotCompared& event) {
  state_.starts_over = event.is_newer;
  if (state_.starts_over) return await(Action::kJoinAll);
  state_.takes_state = true;
  return await(Action::kExchangeState);
}

// Some ranks are in a section, which they finish in a group of their own.
Action Stepper::split(std::span<const RankReport> reports, int rank) {
  const RankReport& own = reports[static_cast<std::size_t>(rank)];
  if (is_in_section(own)) choose_main(reports, rank);
  state_.survivors = find_survivors(reports);
  state_.lacks_ranks = state_.survivors.size() < reports.size();
  if (!state_.survivors.empty()) return await(Action::kFormSurvivors);
  const bool is_behind = std::ranges::any_of(
      reports, [&](const RankReport& report) { return position_of(report) > position_of(own); });
  // Others are on their way to a boundary or the next section.
  if (!is_in_section(own) || !is_behind) return meet();
  // A rank that is further has passed this section, and so its first barrier.
  if (state_.section != SectionProgress::kComplete) return end_call(Action::kFailPositionsDiffer);
  return await(Action::kGoOnAlone);
}

// The first rank that has reached the section.
void Stepper::choose_main(std::span<const RankReport> reports, int rank) {
  const auto has_come = [&](const RankReport& report) {
    return is_in_section(report) || report.boundaries > state_.boundaries;
  };
  const auto first = std::ranges::find_if(reports, has_come);
  if (state_.section == SectionProgress::kComplete) state_.section_had_results = true;
  const bool may_print = state_.is_main || !state_.section_had_results;
  state_.is_first_survivor = first - reports.begin() == rank;
  state_.is_main = may_print && state_.is_first_survivor;
}

Action Stepper::join_survivors() {
  if (state_.call == Call::kJoin) return await(Action::kGoOnAlone);
  return await(state_.is_at_boundary ? Action::kGatherReports : Action::kJoinSurvivors);
}

Action Stepper::on(const outcome::Joined& event) {
  if (state_.starts_over) {
    state_.phase = Phase::kInactive;
    state_.recoveries = 0;
    return end_call();
  }
  state_.phase = Phase::kTraining;
  state_.compares_soon = state_.generation > 1;
  // What is due here is not made up for: on all ranks alike, wherever each has been.
  state_.checked_steps = event.steps;
  return leave_boundary();
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

}  // namespace

const char* name_of(RecoveryPhase phase) {
  switch (phase) {
    case Phase::kInactive:
      return "inactive";
    case Phase::kTraining:
      return "training";
    case Phase::kDiscarding:
      return "discarding";
    case Phase::kGroupLost:
      return "group lost";
    case Phase::kJoining:
      return "joining";
    case Phase::kReceived:
      return "received";
    case Phase::kSurvivors:
      return "survivors";
    case Phase::kFinishing:
      return "finishing";
    case Phase::kEnded:
      return "ended";
  }
  return "";
}

const char* name_of(RecoveryAction action) {
  switch (action) {
    case Action::kReturn:
      return "return";
    case Action::kDecline:
      return "decline";
    case Action::kRunAlone:
      return "run alone";
    case Action::kRunInStep:
      return "run in the step";
    case Action::kFailPositionsDiffer:
      return "fail: positions differ";
    case Action::kFailStateLost:
      return "fail: the state is lost";
    case Action::kGiveUp:
      return "give up: the state is lost";
    case Action::kAnnounceState:
      return "announce the state";
    case Action::kAnnounceEnd:
      return "announce the end";
    case Action::kLeaveGroup:
      return "leave the group";
    case Action::kGoOnAlone:
      return "go on alone";
    case Action::kTakePlace:
      return "take a rank";
    case Action::kRollBack:
      return "roll back";
    case Action::kRemember:
      return "remember";
    case Action::kBeginInterval:
      return "begin an interval";
    case Action::kTakeState:
      return "take the state";
    case Action::kFormGroup:
      return "form the group";
    case Action::kGatherReports:
      return "gather reports";
    case Action::kFormSurvivors:
      return "form the group of survivors";
    case Action::kExchangeState:
      return "exchange the state";
    case Action::kLoadSnapshot:
      return "load a snapshot";
    case Action::kCompareSnapshot:
      return "compare the snapshot";
    case Action::kJoinAll:
      return "join all";
    case Action::kKeepShards:
      return "keep shards";
    case Action::kCompareReplicas:
      return "compare replicas";
    case Action::kKeepCopy:
      return "keep a copy";
    case Action::kSaveSnapshot:
      return "save a snapshot";
    case Action::kCheckGeneration:
      return "check the generation";
    case Action::kAwaitVerdict:
      return "await the launcher's verdict";
    case Action::kJoinSurvivors:
      return "join the survivors";
    case Action::kRunSection:
      return "run the section";
    case Action::kBarrier:
      return "barrier";
  }
  return "";
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
