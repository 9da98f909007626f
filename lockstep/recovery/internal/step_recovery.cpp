#include "lockstep/recovery/internal/step_recovery.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <ATen/ops/tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "diagnose/capture/recent_calls.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/base/internal/failpoint.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/comm/internal/init_plan.h"
#include "lockstep/comm/internal/stand_in_group.h"
#include "lockstep/recovery/internal/broadcast_value.h"
#include "lockstep/recovery/internal/generations.h"
#include "lockstep/recovery/internal/step_seed.h"
#include "lockstep/snapshot/internal/agreement.h"

namespace lockstep::inline internal {
namespace {

using Clock = std::chrono::steady_clock;

// How often a step looks for the launcher's messages, which costs a system call. A generation that
// is over ends collectives at once.
constexpr std::chrono::milliseconds kAsksEvery{5};

}  // namespace

/// Where a rank is in the program, for the others.
struct StepRecovery::Place {
  bool is_new = false;  ///< it has joined the job just now
  bool at_boundary = false;
  bool is_ending = false;
  bool is_void = false;  ///< its step was
  std::int64_t boundaries = 0;
  std::int64_t passed = 0;
  bool has_state = false;
  bool has_memory = false;

  auto progress() const { return std::pair(boundaries, passed); }
};

StepRecovery::StepRecovery(RecoverableTraining& training, StepRecoveryOptions options)
    : training_(training), options_(std::move(options)), memory_(link_.take_memory()) {}

// Where an error ends the program, the others keep their state for a replacement.
StepRecovery::~StepRecovery() {
  if (keeps_state_ && std::uncaught_exceptions() == exceptions_) link_.say_done();
}

bool StepRecovery::is_offered() {
  return LauncherLink::is_offered() && env::integer(env::kMaxRestarts).value_or(0) > 0;
}

void StepRecovery::read_place() {
  rank_ = env::integer(env::kRank).value_or(-1);
  world_size_ = env::integer(env::kWorldSize).value_or(1);
}

ProcessGroup StepRecovery::init() {
  InitOptions init = options_.init;
  // Copies of the group may outlive this object.
  init.while_waiting = [this, alive = std::weak_ptr<const bool>(alive_)] {
    if (!alive.expired()) check_if_over(link_);
  };
  replace_default_group({});
  ProcessGroup group = init_process_group(init);
  rank_ = group.rank();
  world_size_ = group.world_size();
  return group;
}

ProcessGroup StepRecovery::join() {
  if (link_.is_standby()) {
    state_ = State::kCatchingUp;
    read_place();
    announce_state();
  } else if (link_.connected() && link_.generation() > 1) {
    read_place();
    announce_state();
    for (;;) {
      try {
        if (!all_) all_ = init();
        failpoint("recover.grouped");
        const std::vector<Place> places = gather_places(/*is_new=*/true, /*at_boundary=*/false);
        const auto has_some = [](const Place& place) {
          return place.has_state || place.has_memory || place.at_boundary;
        };
        if (std::ranges::none_of(places, has_some)) return all_;
        // As settle() on the others: groups are counted.
        if (const auto between = ranks_between(places); !between.empty()) all_.new_group(between);
        state_ = State::kCatchingUp;
        break;
      } catch (const Error& error) {
        if (!ends_generation(error)) throw;
        leave_generation(error);
        link_.take_place(while_waiting_);
      }
    }
  } else {
    all_ = init();
    return all_;
  }
  const ProcessGroup stand_in = make_stand_in(all_);
  replace_default_group(stand_in);
  return stand_in;
}

void StepRecovery::announce_state() {
  if (std::exchange(keeps_state_, true)) return;
  link_.say_keeps_state(collective_timeout(options_.init));
}

void StepRecovery::activate() {
  if (!link_.connected() || state_ != State::kInactive) return;
  state_ = State::kTraining;
  announce_state();
  is_whole_ = true;
  generation_ = static_cast<std::int64_t>(link_.generation());
  begin_interval();
}

void StepRecovery::deactivate() {
  state_ = State::kInactive;
  if (std::exchange(keeps_state_, false)) link_.say_done();
}

Standing StepRecovery::standing() const {
  return is_whole_ ? Standing{.generation = generation_, .steps = boundaries_} : Standing{};
}

// The launcher can begin the next generation while the program goes on to the boundary.
void StepRecovery::give_up_group(const Error& why) {
  const ProcessGroup stand_in = make_stand_in(all_);
  training_.drop_group(stand_in);
  leave_generation(why);
  replace_default_group(stand_in);
}

void StepRecovery::leave_generation(const Error& why) {
  internal::leave_generation(link_, why, [&] {
    if (apart_) {
      if (const auto backend = apart_.c10d_backend()) backend->abort();
      apart_ = {};
    }
    abandon_default_group(all_);
    return training_.steps();
  });
}

bool StepRecovery::fail(const Error& error) {
  if (state_ == State::kInactive || state_ == State::kEnded || !ends_generation(error))
    return false;
  if (in_between_) return false;  // run_between() catches it.
  if (has_lost_group()) return in_step_ || is_void();
  if (!in_step_) return false;  // Its result would be of a part of the ranks.
  is_tainted_ = step_complete_;
  state_ = step_complete_ ? State::kBroken : State::kVoid;
  give_up_group(error);
  return true;
}

std::vector<StepRecovery::Place> StepRecovery::gather_places(bool is_new, bool at_boundary) const {
  // All ranks of a machine have the same copy.
  const bool has_memory = all_.local_rank() == 0 && memory_.standing().exists();
  std::vector<Place> places;
  for (const auto& row : gather_rows(all_, {is_new ? 1 : 0, at_boundary ? 1 : 0, is_ending_ ? 1 : 0,
                                            state_ == State::kVoid ? 1 : 0, boundaries_, passed_,
                                            is_whole_ ? 1 : 0, has_memory ? 1 : 0})) {
    places.push_back({.is_new = row.at(0) != 0,
                      .at_boundary = row.at(1) != 0,
                      .is_ending = row.at(2) != 0,
                      .is_void = row.at(3) != 0,
                      .boundaries = row.at(4),
                      .passed = row.at(5),
                      .has_state = row.at(6) != 0,
                      .has_memory = row.at(7) != 0});
  }
  return places;
}

void StepRecovery::recover(bool at_boundary) {
  ++recoveries_;
  if (state_ == State::kVoid) {
    is_whole_ = training_.go_back();
    passed_ = 0;
  }
  if (state_ == State::kVoid || state_ == State::kCatchingUp) in_step_ = false;
  for (;;) {
    try {
      if (!all_) {
        link_.take_place(while_waiting_);
        failpoint("recover.placed");
        all_ = init();
        failpoint("recover.grouped");
      }
      if (settle(at_boundary)) return;
    } catch (const Error& error) {
      if (!ends_generation(error)) throw;
      give_up_group(error);
    }
  }
}

// Of those in code between two steps.
std::vector<int> StepRecovery::ranks_between(const std::vector<Place>& places) {
  std::vector<int> between;
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    if (!places[rank].at_boundary && !places[rank].is_new)
      between.push_back(static_cast<int>(rank));
  }
  return between;
}

// True: this process may go on.
bool StepRecovery::settle(bool at_boundary) {
  for (;;) {
    const std::vector<Place> places = gather_places(/*is_new=*/false, at_boundary);
    if (std::ranges::all_of(places, &Place::at_boundary)) {
      is_over_ = std::ranges::any_of(places, &Place::is_ending);
      agree_on_state();
      failpoint("recover.agreed");
      use_group(all_, /*at_boundary=*/true);
      apart_ = {};
      state_ = State::kTraining;
      check_soon_ = true;
      return true;
    }
    const std::vector<int> between = ranks_between(places);
    if (between.empty()) continue;
    apart_ = all_.new_group(between);
    if (at_boundary) continue;
    // One that is further has passed this call, which takes two barriers: the first has all
    // results.
    const auto furthest =
        std::ranges::max_element(places, {}, [](const Place& place) { return place.progress(); });
    const bool is_behind = furthest->progress() > std::pair(boundaries_, passed_);
    if (is_behind && !first_barrier_passed_) {
      throw Error(
          "the ranks are at different places of the program; each rank must call evaluate(), "
          "save_state() and wait_for_everyone() as often as the others");
    }
    // The first of those that have completed the step, in which the program prints once.
    const auto has_completed = [](const Place& place) { return !place.is_new && !place.is_void; };
    const auto main = std::ranges::find_if(places, has_completed);
    is_main_apart_ = main - places.begin() == all_.rank();
    use_group(apart_, /*at_boundary=*/false);
    state_ = State::kApart;
    if (is_behind) in_between_ = false;
    return true;
  }
}

void StepRecovery::use_group(const ProcessGroup& group, bool at_boundary) {
  replace_default_group(group);
  training_.set_group(group, at_boundary);
}

bool StepRecovery::is_main() const {
  return state_ == State::kApart ? is_main_apart_ : rank_ == 0;
}

void StepRecovery::agree_on_state() {
  Sources ours{};
  if (is_whole_) {
    ours.state = standing();
  } else if (all_.local_rank() == 0) {
    ours.memory = memory_.standing();
  }
  std::vector<Sources> all = gather_sources(all_, ours);
  const auto tainted = gather_rows(all_, {is_tainted_ ? 1 : 0});
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (tainted[rank][0] != 0 && all[rank].state.exists()) all[rank].state.generation = 0;
  }
  SourceChoice source = choose_source(all);
  const auto is_tainted = [](const auto& row) { return row[0] != 0; };
  if (source.kind == SourceChoice::Kind::kOwn && std::ranges::any_of(tainted, is_tainted)) {
    source.kind = SourceChoice::Kind::kRank;  // Each has values of its own.
  }
  failpoint("recover.compared");
  const bool is_source = all_.rank() == source.rank;
  const auto take_from = [&](bool has_it, const c10::IValue& value) {
    const c10::IValue sent = broadcast_value(all_, value, source.rank);
    if (has_it) return;
    is_whole_ = false;  // Until all of it is there.
    failpoint("recover.received");
    training_.take(sent);
    boundaries_ = source.standing.steps;
    generation_ = source.standing.generation;
    passed_ = 0;
    failpoint("recover.taken");
  };
  switch (source.kind) {
    case SourceChoice::Kind::kOwn:
      break;
    case SourceChoice::Kind::kRank: {
      const bool has_it = is_source || (is_whole_ && !is_tainted_ && ours.state == source.standing);
      take_from(has_it, has_it ? training_.value() : c10::IValue());
      break;
    }
    case SourceChoice::Kind::kMemory:
      take_from(false, is_source ? memory_.read() : c10::IValue());
      break;
    default:
      throw Error(
          concat("recovery on rank ", all_.rank(),
                 ": no rank holds a complete state any more, and there is no copy of it; the "
                 "job starts again from the newest snapshot that the program loads; "
                 "memory_every keeps a copy in memory"));
  }
  is_whole_ = true;
  is_tainted_ = false;
}

void StepRecovery::commit() {
  ++boundaries_;
  passed_ = 0;
  in_step_ = false;
  step_complete_ = true;
  generation_ = static_cast<std::int64_t>(link_.generation());
}

void StepRecovery::begin_interval() {
  training_.remember();
  seed_step(options_.seed, rank_, training_.place(), all_.device());
}

void StepRecovery::boundary(Boundary kind) {
  if (state_ == State::kInactive || state_ == State::kEnded) return;
  if (state_ == State::kFinishing) {
    if (kind == Boundary::kEnd) state_ = State::kEnded;
    return;
  }
  is_ending_ = kind == Boundary::kEnd;
  if (state_ == State::kArriving && kind != Boundary::kEnd) {
    is_whole_ = training_.go_back();  // What the program has done meanwhile does not count.
    state_ = State::kTraining;
    begin_interval();
    return;
  }
  if (state_ == State::kVoid || state_ == State::kCatchingUp) {
    recover(/*at_boundary=*/true);
  } else {
    commit();
    if (state_ == State::kTraining) {
      try {
        check_and_keep();
        if (kind == Boundary::kEpochEnd) all_.barrier();
        if (const auto now = Clock::now(); now >= asks_at_) {
          asks_at_ = now + kAsksEvery;
          check_if_over(link_);
        }
      } catch (const Error& error) {
        if (!ends_generation(error)) throw;
        state_ = State::kBroken;
        give_up_group(error);
      }
    }
    if (state_ != State::kTraining) recover(/*at_boundary=*/true);
  }
  if (kind == Boundary::kEnd || is_over_) {
    end();
    state_ = kind == Boundary::kEnd ? State::kEnded : State::kFinishing;
    return;
  }
  begin_interval();
}

// Two barriers: who fails in the second knows that all have passed the first.
void StepRecovery::end() {
  bool all_are_here = false;
  while (!all_are_here) {
    try {
      all_.barrier();
      all_are_here = true;
      failpoint("training.end");
      all_.barrier();
    } catch (const Error& error) {
      if (!ends_generation(error)) throw;
      if (all_are_here) break;
      state_ = State::kBroken;
      give_up_group(error);
      recover(/*at_boundary=*/true);
    }
  }
  failpoint("training.done");
  if (std::exchange(keeps_state_, false)) link_.say_done();
}

void StepRecovery::arrive() {
  if (state_ != State::kCatchingUp) return;
  is_ending_ = false;
  recover(/*at_boundary=*/true);
  if (is_over_) {
    end();
    state_ = State::kFinishing;
    return;
  }
  training_.remember();
  state_ = State::kArriving;
}

bool StepRecovery::run_between(const std::function<void()>& action) {
  if (is_void()) return false;
  // Also as a part of another one.
  if (state_ == State::kInactive || state_ == State::kEnded || in_between_) {
    action();
    return true;
  }
  if (in_step_ && !step_complete_) {
    // Of the step: where it fails, the step is void.
    try {
      action();
      return true;
    } catch (const Error& error) {
      if (!fail(error)) throw;
      return false;
    }
  }
  struct Guard {
    bool& flag;
    ~Guard() { flag = false; }
  } guard{in_between_};
  in_between_ = true;
  first_barrier_passed_ = false;
  for (;;) {
    try {
      if (state_ == State::kBroken) {
        recover(/*at_boundary=*/false);
        if (!in_between_) break;  // It is complete.
      }
      first_barrier_passed_ = false;
      action();
      const ProcessGroup group = default_process_group();
      group.barrier();
      first_barrier_passed_ = true;
      group.barrier();
      break;
    } catch (const Error& error) {
      if (!ends_generation(error)) throw;
      state_ = State::kBroken;
      give_up_group(error);
    }
  }
  ++passed_;
  return true;
}

void StepRecovery::check_and_keep() {
  const std::int64_t steps = training_.steps();
  const bool has_stepped = std::exchange(checked_at_, steps) != steps;
  const auto is_due = [&](int every) { return has_stepped && every > 0 && steps % every == 0; };
  if (std::exchange(check_soon_, false) || is_due(options_.check_replicas_every)) {
    repair_replicas(all_, training_, steps, is_whole_);
  }
  if (is_due(options_.memory_every)) keep_copy(all_, training_, standing(), memory_, link_);
}

}  // namespace lockstep::inline internal
