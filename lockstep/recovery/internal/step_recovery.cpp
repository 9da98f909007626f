#include "lockstep/recovery/internal/step_recovery.h"

#include <algorithm>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/base/internal/failpoint.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/comm/internal/init_plan.h"
#include "lockstep/comm/internal/stand_in_group.h"
#include "lockstep/recovery/internal/broadcast_value.h"
#include "lockstep/recovery/internal/generations.h"
#include "lockstep/recovery/internal/step_seed.h"

namespace lockstep::inline internal {
namespace {

using Action = RecoveryAction;
using Clock = std::chrono::steady_clock;

// How often a step looks for the launcher's messages, which costs a system call. A generation that
// is over ends collectives at once.
constexpr std::chrono::milliseconds kChecksEvery{5};

// The launcher waits up to 1 s for the end of the process that others lost (kCauseComes there).
constexpr std::chrono::milliseconds kVerdictTakes{2'000};

}  // namespace

StepRecovery::StepRecovery(RecoverableTraining& training, StepRecoveryOptions options)
    : training_(training), options_(std::move(options)), memory_(link_.take_memory()) {
  state_.memory_every = options_.memory_every;
  state_.check_replicas_every = options_.check_replicas_every;
  state_.save_every = options_.save_every;
  state_.keeps_shards = options_.keeps_shards;
}

// Where an error ends the program, the others keep their state for a replacement. A loop that
// repeats steps has said so itself where it has ended well.
StepRecovery::~StepRecovery() {
  if (state_.is_announced && !state_.owns_loop && std::uncaught_exceptions() == exceptions_)
    link_.say_done();
}

bool StepRecovery::is_offered() {
  return LauncherLink::is_offered() && env::integer(env::kMaxRestarts).value_or(0) > 0;
}

// Calls of the program.

void StepRecovery::join(bool owns_loop) {
  rank_ = env::integer(env::kRank).value_or(-1);
  world_size_ = env::integer(env::kWorldSize).value_or(1);
  carry_out(called::Join{.generation = link_.generation(),
                         .rank = rank_,
                         .can_recover = link_.connected(),
                         .is_standby = link_.is_standby(),
                         .owns_loop = owns_loop});
}

ProcessGroup StepRecovery::join() {
  join(/*owns_loop=*/false);
  return default_process_group();
}

void StepRecovery::begin() {
  join(/*owns_loop=*/true);
}

void StepRecovery::activate() {
  if (link_.connected()) carry_out(called::Activate{});
}

void StepRecovery::deactivate() {
  carry_out(called::Deactivate{});
}

bool StepRecovery::fail(const Error& error) {
  if (!ends_generation(error)) return false;
  lost_because_ = std::current_exception();
  return carry_out(called::CollectiveFailed{}) == Action::kReturn;
}

bool StepRecovery::recover(const Error& error) {
  if (!ends_generation(error)) return false;
  lost_because_ = std::current_exception();
  return carry_out(called::StepFailed{}) == Action::kReturn;
}

void StepRecovery::leave() {
  carry_out(called::Leave{});
}

void StepRecovery::boundary(BoundaryKind kind) {
  carry_out(called::Boundary{
      .kind = kind, .steps = training_.steps(), .has_new_shards = training_.has_new_shards()});
}

void StepRecovery::arrive(const NewestSnapshot& newest_snapshot) {
  struct Forgets {
    NewestSnapshot& function;
    ~Forgets() { function = nullptr; }
  } const forgets{newest_snapshot_};
  newest_snapshot_ = newest_snapshot;
  carry_out(called::Arrive{});
}

bool StepRecovery::run_on_survivors(const std::function<void()>& action) {
  switch (carry_out(called::RunOnSurvivors{training_.has_new_shards()}, action)) {
    case Action::kDecline:
      return false;
    case Action::kRunAlone:
      action();
      return true;
    case Action::kRunInStep:
      try {
        action();
        return !is_discarding();  // Where a collective in it has failed and said so.
      } catch (const Error& error) {
        if (!fail(error)) throw;
        return false;
      }
    default:
      return true;
  }
}

// The actions.

// Returns the last one, with which the call ends.
RecoveryAction StepRecovery::carry_out(const RecoveryEvent& event, const Section& section) {
  Action action = step(state_, event);
  for (;;) {
    switch (action) {
      case Action::kReturn:
      case Action::kDecline:
      case Action::kRunAlone:
      case Action::kRunInStep:
        return action;
      case Action::kFailPositionsDiffer:
        throw Error(
            "the ranks are in different calls of the program; each rank must call evaluate(), "
            "save_state() and wait_for_everyone() equally often");
      case Action::kFailStateLost:
        throw Error(
            concat("recovery on rank ", all_.rank(),
                   ": no rank has a complete state, and there is no copy of it; the job restarts "
                   "from the newest snapshot that the program loads; set memory_every to keep a "
                   "copy in memory"));
      case Action::kGiveUp:
        link_.say_gives_up();
        throw Error(concat("ResilientTraining on rank ", all_.rank(), ": the state after ",
                           state_.source.standing.steps,
                           " steps or more is lost: no rank has a complete state, and there is no "
                           "copy of it; start the job again from step 0; set memory_every or "
                           "snapshots in ResilientOptions to keep copies"));
      default:
        action = step(state_, attempt(action, section));
    }
  }
}

RecoveryEvent StepRecovery::attempt(RecoveryAction action, const Section& section) {
  try {
    return perform(action, section);
  } catch (const Error& error) {
    if (can_lose_group(state_) && ends_generation(error)) {
      lost_because_ = std::current_exception();
      return outcome::GroupLost{.shards_are_kept =
                                    action == Action::kKeepShards && training_.settle_shards()};
    }
    step(state_, outcome::Failed{});
    throw;
  } catch (...) {
    step(state_, outcome::Failed{});
    throw;
  }
}

RecoveryEvent StepRecovery::perform(RecoveryAction action, const Section& section) {
  switch (action) {
    case Action::kAnnounceState:
      link_.say_keeps_state(collective_timeout(options_.init));
      break;
    case Action::kAnnounceEnd:
      announce_end();
      break;
    case Action::kLeaveGroup:
      leave_group();
      break;
    case Action::kGoOnAlone:
      go_on_alone();
      break;
    case Action::kTakePlace:
      take_rank();
      return outcome::PlaceTaken{.generation = link_.generation()};
    case Action::kRollBack:
      return outcome::RolledBack{.is_whole = training_.roll_back()};
    case Action::kRemember:
      training_.remember();
      break;
    case Action::kBeginInterval:
      begin_interval();
      break;
    case Action::kTakeState:
      take_state();
      break;
    case Action::kFormGroup:
      all_ = init();
      failpoint("recover.grouped");
      break;
    case Action::kGatherReports:
      reports_ = gather_reports();
      return outcome::ReportsGathered{.reports = reports_, .rank = all_.rank()};
    case Action::kFormSurvivors:
      survivors_ = all_.new_group(state_.survivors);
      break;
    case Action::kExchangeState:
      exchange_state();
      break;
    case Action::kLoadSnapshot:
      return outcome::SnapshotLoaded{.steps = load_snapshot()};
    case Action::kCompareSnapshot:
      return outcome::SnapshotCompared{.is_newer = is_snapshot_newer()};
    case Action::kJoinAll:
      if (state_.source.kind == SourceChoice::Kind::kOwn) failpoint("recover.compared");
      failpoint("recover.agreed");
      use_group(all_, /*at_boundary=*/true);
      survivors_ = {};
      return outcome::Joined{.steps = training_.steps()};
    case Action::kCompareReplicas:
      return compare_replicas();
    case Action::kKeepShards:
      training_.keep_shards();
      break;
    case Action::kKeepCopy:
      if (options_.keeps_shards) break;  // No rank has the whole state.
      keep_copy(all_, training_, state_.standing(), memory_, link_);
      memory_standing_.reset();
      break;
    case Action::kSaveSnapshot:
      training_.save_snapshot(all_);
      break;
    case Action::kCheckGeneration:
      check_generation();
      break;
    case Action::kAwaitVerdict:
      if (link_.has_news(kVerdictTakes)) check_if_over(link_);
      break;
    case Action::kJoinSurvivors:
      use_group(survivors_, /*at_boundary=*/false);
      break;
    case Action::kRunSection:
      section();
      break;
    case Action::kBarrier:
      if (state_.stage == RecoveryStage::kAllEnded) failpoint("training.end");
      (survivors_ ? survivors_ : all_).barrier();
      break;
    default:
      break;
  }
  return outcome::Done{};
}

ProcessGroup StepRecovery::init() {
  InitOptions init = options_.init;
  // Copies of the group may outlive this object.
  init.while_waiting = [this, alive = std::weak_ptr<const bool>(alive_)] {
    if (alive.expired()) return;
    check_if_over(link_);
    if (!all_) while_waiting_();  // Else it is a collective of the training.
  };
  replace_default_group({});
  ProcessGroup group = init_process_group(init);
  rank_ = group.rank();
  world_size_ = group.world_size();
  return group;
}

// The launcher can begin the next generation while the program goes on to the boundary.
void StepRecovery::leave_group() {
  const ProcessGroup stand_in = make_stand_in(all_);
  training_.drop_group(stand_in);
  const auto leave = [&](const Error& why) {
    leave_generation(link_, why, [&] {
      if (survivors_) {
        if (const auto backend = survivors_.c10d_backend()) backend->abort();
        survivors_ = {};
      }
      abandon_default_group(all_);
      return training_.steps();
    });
  };
  try {
    std::rethrow_exception(std::exchange(lost_because_, nullptr));
  } catch (const Error& why) {
    leave(why);
  }
  replace_default_group(stand_in);
}

void StepRecovery::go_on_alone() {
  const ProcessGroup stand_in = make_stand_in(all_);
  training_.drop_group(stand_in);
  replace_default_group(stand_in);
}

void StepRecovery::take_rank() {
  link_.take_rank(while_waiting_);
  if (UniqueFd memory = link_.take_memory(); memory.valid()) {
    memory_ = StateMemory(std::move(memory));
    memory_standing_.reset();
  }
  failpoint("recover.placed");
}

void StepRecovery::use_group(const ProcessGroup& group, bool at_boundary) {
  replace_default_group(group);
  training_.set_group(group, at_boundary);
}

std::vector<RankReport> StepRecovery::gather_reports() {
  RankReport own = state_.report();
  // All ranks of a machine have the same copy.
  if (state_.held == HeldState::kNone && all_.local_rank() == 0) {
    if (!memory_standing_) memory_standing_ = memory_.standing();
    own.memory = *memory_standing_;
  }
  if (state_.held == HeldState::kNone) own.snapshot_steps = training_.newest_snapshot(all_);
  own.loads_snapshot = newest_snapshot_ && newest_snapshot_(/*is_complete=*/false) >= 0;
  own.known_boundaries = std::max(own.known_boundaries, link_.steps_made());
  std::vector<RankReport> reports;
  for (const auto& row :
       gather_rows(all_, {own.is_new ? 1 : 0, own.is_at_boundary ? 1 : 0, own.is_discarding ? 1 : 0,
                          own.boundaries, own.sections, static_cast<std::int64_t>(own.held),
                          own.state.generation, own.state.steps, own.state.is_end ? 1 : 0,
                          own.memory.generation, own.memory.steps, own.memory.is_end ? 1 : 0,
                          own.snapshot_steps, own.loads_snapshot ? 1 : 0, own.known_boundaries})) {
    reports.push_back(
        {.is_new = row.at(0) != 0,
         .is_at_boundary = row.at(1) != 0,
         .is_discarding = row.at(2) != 0,
         .boundaries = row.at(3),
         .sections = row.at(4),
         .held = static_cast<HeldState>(row.at(5)),
         .state = {.generation = row.at(6), .steps = row.at(7), .is_end = row.at(8) != 0},
         .memory = {.generation = row.at(9), .steps = row.at(10), .is_end = row.at(11) != 0},
         .snapshot_steps = row.at(12),
         .loads_snapshot = row.at(13) != 0,
         .known_boundaries = row.at(14)});
  }
  return reports;
}

void StepRecovery::exchange_state() {
  failpoint("recover.compared");
  c10::IValue own;
  kept_.reset();
  const bool is_of_rank = state_.source.kind == SourceChoice::Kind::kRank;
  if (is_of_rank && all_.world_size() > 1 && all_.shares_memory()) {
    kept_ = keep_memory(all_, training_.parameters(), state_.source.rank, state_.takes_state);
  }
  if (state_.source.kind == SourceChoice::Kind::kMemory) {
    if (state_.is_source) own = memory_.read();
  } else if (!state_.takes_state) {
    own = training_.value();
  }
  received_ = broadcast_value(all_, own, state_.source.rank, kept_ ? &*kept_ : nullptr);
  if (state_.takes_state) return;
  received_ = {};  // It has as many bytes as the state.
  kept_.reset();
}

std::int64_t StepRecovery::load_snapshot() {
  failpoint("recover.compared");
  return training_.load_snapshot(all_, /*has_memory=*/state_.source.standing.exists());
}

// One rank reads the files: the one with the copy.
bool StepRecovery::is_snapshot_newer() {
  bool is_newer = false;
  if (state_.is_source) {
    const std::int64_t steps = training_.steps_of(memory_.read());
    is_newer = newest_snapshot_(/*is_complete=*/false) > steps &&
               newest_snapshot_(/*is_complete=*/true) > steps;
  }
  const auto rows = gather_rows(all_, {is_newer ? 1 : 0});
  return rows.at(static_cast<std::size_t>(state_.source.rank)).at(0) != 0;
}

void StepRecovery::take_state() {
  failpoint("recover.received");
  if (kept_) kept_->bind();
  kept_.reset();
  training_.take(std::exchange(received_, {}));
  failpoint("recover.taken");
}

void StepRecovery::begin_interval() {
  training_.remember();
  seed_step(options_.seed, rank_, training_.place(), all_.device());
}

RecoveryEvent StepRecovery::compare_replicas() {
  bool is_whole = true;
  try {
    repair_replicas(all_, training_, training_.steps(), is_whole);
  } catch (const Error& error) {
    if (is_whole || !ends_generation(error)) throw;
    lost_because_ = std::current_exception();
    return outcome::GroupLost{.state_is_lost = true};
  }
  return outcome::Done{};
}

void StepRecovery::check_generation() {
  const auto now = Clock::now();
  if (now < checks_at_) return;
  checks_at_ = now + kChecksEvery;
  check_if_over(link_);
}

void StepRecovery::announce_end() {
  if (state_.stage == RecoveryStage::kAllEnded) failpoint("training.done");
  link_.say_done(/*is_complete=*/state_.phase != RecoveryPhase::kInactive);
}

}  // namespace lockstep::inline internal
