// A recovery: ranks meet in a new generation, and agree on a state; or some finish a section first.
#include <algorithm>
#include <utility>
#include <vector>

#include "lockstep/recovery/internal/stepper.h"

namespace lockstep::inline internal {
namespace {

using Action = RecoveryAction;
using Call = RecoveryCall;
using Phase = RecoveryPhase;
using Stage = RecoveryStage;

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

}  // namespace

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

}  // namespace lockstep::inline internal
