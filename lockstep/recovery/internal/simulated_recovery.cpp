// The collectives of simulated processes, and the actions as StepRecovery carries them out.
#include <algorithm>
#include <cstdio>

#include "lockstep/base/internal/concat.h"
#include "lockstep/recovery/internal/simulated_process.h"

namespace lockstep::inline internal {
namespace {

using Action = RecoveryAction;
using Phase = RecoveryPhase;

}  // namespace

SimulatedTask<SimulatedTraining::Group::Call*> SimulatedTraining::Process::call(
    std::shared_ptr<Group> group, const char* kind, Row row, int source,
    std::shared_ptr<const Snapshot> sent) {
  const std::size_t own = group->rank_of(this);
  const std::size_t number = group->next[own]++;
  if (group->calls.size() == number) {
    const std::size_t ranks = group->members.size();
    group->calls.push_back(
        {.kind = kind, .rows = std::vector<Row>(ranks), .has_entered = std::vector<bool>(ranks)});
  }
  Group::Call& one = group->calls[number];
  if (one.kind != kind)
    job.fail(concat("ranks are in different calls: ", kind, " and ", std::string(one.kind)));
  one.rows[own] = std::move(row);
  one.has_entered[own] = true;
  ++one.entered;
  if (static_cast<int>(own) == source) one.sent = std::move(sent);
  waits_in = group;
  call_number = number;
  call_source = source;
  co_await wait(Waits::kForCall);
  co_return &one;
}

SimulatedTraining::Task SimulatedTraining::Process::form_group() {
  const auto ranks = static_cast<std::size_t>(job.world_size_);
  auto& group = job.groups_[generation];
  if (!group) group = std::make_shared<Group>(ranks);
  group->members[static_cast<std::size_t>(rank)] = this;
  waits_in = group;
  co_await wait(Waits::kForGroup);
  all = waits_in;
  used = all;
  co_return true;
}

bool SimulatedTraining::can_run(const Process& process) const {
  using Waits = Process::Waits;
  switch (process.waits) {
    case Waits::kForNothing:
      return true;
    case Waits::kForPlace:
      return std::ranges::any_of(process.inbox, [&](const auto& message) {
        return message.is_place && message.generation > process.generation;
      });
    case Waits::kForVerdict:
      return process.has_news() || !(is_over_ || is_between_);
    case Waits::kForGroup:
      return process.waits_in->is_complete() || process.has_news();
    case Waits::kForCall:
      break;
  }
  const Group& group = *process.waits_in;
  const Group::Call& call = group.calls[process.call_number];
  const bool is_complete = process.call_source >= 0
                               ? call.has_entered[static_cast<std::size_t>(process.call_source)]
                               : call.entered == group.members.size();
  return is_complete || group.is_broken() || process.has_news();
}

void SimulatedTraining::resume(Process& process) {
  using Waits = Process::Waits;
  if (process.waits == Waits::kForGroup) {
    const bool is_complete = process.waits_in->is_complete();
    process.loses_group = !is_complete || (process.has_news() && draw(0, 1) == 0);
  } else if (process.waits == Waits::kForCall) {
    const Group& group = *process.waits_in;
    const Group::Call& call = group.calls[process.call_number];
    const bool is_complete = process.call_source >= 0
                                 ? call.has_entered[static_cast<std::size_t>(process.call_source)]
                                 : call.entered == group.members.size();
    const bool is_broken = group.is_broken() || process.has_news();
    const bool fails =
        std::exchange(process.next_call_fails, false) || (is_broken && draw(0, 1) == 0);
    process.loses_group = !is_complete || fails;
  }
  const std::coroutine_handle<> at =
      process.resumes_at ? process.resumes_at : process.main.handle();
  at.resume();
  if (!process.main.is_done()) return;
  try {
    process.main.result();
    expect_end(process);
    if (process.has_announced) {
      process.has_announced = false;
      process.is_done = true;
    }
    end(process, /*failed=*/false);
  } catch (const ProgramError& error) {
    trace(process, concat("ends with: ", error.text));
    if (!error.is_expected) fail(concat("process ", process.id, ": ", error.text));
    was_killed_ = true;
    end(process, /*failed=*/true);
  }
}

void SimulatedTraining::check_same(const Process& process, const char* what, const Row& own,
                                   const std::vector<Row>& all) {
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == own) continue;
    std::string text = concat("process ", process.id, ": ", what, " of different states:");
    for (const auto& row : {own, all[rank]}) {
      for (const std::int64_t number : row) text += concat(" ", number);
      text += ";";
    }
    return fail(text);
  }
}

// The actions, as StepRecovery carries them out.

SimulatedTask<RecoveryAction> SimulatedTraining::Process::carry_out(RecoveryEvent event,
                                                                    const Section* section) {
  Action action = step(state, event);
  for (;;) {
    if (job.coverage_ != nullptr) {
      ++(*job.coverage_)[static_cast<std::size_t>(state.phase)][static_cast<std::size_t>(action)];
    }
    job.trace(*this, name_of(action));
    switch (action) {
      case Action::kReturn:
      case Action::kDecline:
      case Action::kRunAlone:
      case Action::kRunInStep:
        co_return action;
      case Action::kFailPositionsDiffer:
        throw ProgramError{.text = "the ranks are at different places"};
      case Action::kFailStateLost:
        for (const Process* const other : job.living()) {
          if (other->generation == generation && other->state.held == HeldState::kWhole &&
              other->state.is_active())
            job.fail(concat("process ", other->id, " has the state that counts as lost"));
        }
        throw ProgramError{.text = "no rank holds a state", .is_expected = true};
      case Action::kGiveUp:
        for (const Process* const other : job.living()) {
          if (other->generation == generation && other->state.held == HeldState::kWhole)
            job.fail(concat("process ", other->id, " has the state that counts as lost"));
        }
        if (job.memory_ || job.disk_) job.fail("a copy counts as lost");
        job.gave_up_ = true;
        throw ProgramError{.text = "the state is lost", .is_expected = true};
      default:
        break;
    }
    RecoveryEvent next = outcome::Done{};
    std::exception_ptr error;
    bool is_lost = false;
    try {
      next = co_await perform(action, section);
    } catch (const GroupIsLost&) {
      is_lost = true;
      error = std::current_exception();
    } catch (const ProgramError&) {
      error = std::current_exception();
    }
    if (is_lost && can_lose_group(state)) {
      job.trace(*this, concat("  lost: ", name_of(action)));
      next =
          outcome::GroupLost{.shards_are_kept = action == Action::kKeepShards && settle_shards()};
    } else if (is_lost) {
      step(state, outcome::Failed{});
      throw ProgramError{.text = concat("no group: ", name_of(action)),
                         .is_expected = state.phase == Phase::kInactive};
    } else if (error) {
      step(state, outcome::Failed{});
      std::rethrow_exception(error);
    }
    action = step(state, next);
  }
}

SimulatedTask<RecoveryEvent> SimulatedTraining::Process::perform(Action action,
                                                                 const Section* section) {
  switch (action) {
    case Action::kAnnounceState:
      co_await yield();
      has_announced = true;
      break;
    case Action::kAnnounceEnd:
      co_await yield();
      knows_end = end_barriers == 2 || std::exchange(has_verdict, false);
      has_announced = false;
      is_done = true;
      break;
    case Action::kLeaveGroup:
      co_await yield();
      leave_groups();
      co_await yield();
      if (generation == job.generation_) job.is_over_ = true;
      break;
    case Action::kGoOnAlone:
      used = nullptr;
      break;
    case Action::kTakePlace:
      co_await wait(Waits::kForPlace);
      take_rank();
      co_return outcome::PlaceTaken{.generation = generation};
    case Action::kRollBack: {
      co_await yield();
      const bool is_whole = roll_back();
      const bool may_fail = job.options_.extra_update_every > 0 ||
                            (job.options_.owns_loop && job.options_.gathers_in_tail);
      if (!is_whole && !may_fail) job.fail(concat("process ", id, " cannot roll back"));
      co_return outcome::RolledBack{.is_whole = is_whole};
    }
    case Action::kRemember:
    case Action::kBeginInterval:
      remember();
      break;
    case Action::kTakeState:
      co_await yield();
      take_state();
      break;
    case Action::kFormGroup:
      if (state.generation != generation) job.fail("another generation");
      co_await form_group();
      break;
    case Action::kGatherReports:
      co_await gather_reports();
      co_return outcome::ReportsGathered{.reports = reports,
                                         .rank = static_cast<int>(all->rank_of(this))};
    case Action::kFormSurvivors: {
      Row ranks(state.survivors.begin(), state.survivors.end());
      Group::Call* const made = co_await call(all, "new group", ranks);
      job.check_same(*this, "group", ranks, made->rows);
      if (!made->made) {
        made->made = std::make_shared<Group>(ranks.size());
        for (std::size_t i = 0; i < ranks.size(); ++i) {
          made->made->members[i] = all->members[static_cast<std::size_t>(ranks[i])];
          made->made->is_gone[i] = all->is_gone[static_cast<std::size_t>(ranks[i])];
        }
      }
      const bool is_in_it = std::ranges::count(made->made->members, this) > 0;
      survivors = is_in_it ? made->made : nullptr;
      break;
    }
    case Action::kExchangeState:
      check_choice();
      co_await exchange_state();
      break;
    case Action::kLoadSnapshot:
      check_choice();
      co_return co_await load_snapshot();
    case Action::kCompareSnapshot: {
      const Row own(1, state.is_source && job.is_disk_newer());
      const Group::Call* const compared = co_await call(all, "compare the snapshot", own);
      co_return outcome::SnapshotCompared{
          .is_newer = compared->rows[static_cast<std::size_t>(state.source.rank)][0] != 0};
    }
    case Action::kJoinAll:
      if (state.source.kind == SourceChoice::Kind::kOwn) check_choice();
      if (state.held != HeldState::kWhole && !state.starts_over)
        job.fail(concat("process ", id, " has no state"));
      used = all;
      co_await call(all, "join");
      if (state.keeps_shards && !state.starts_over) {
        check_shards();
        for (KeptShards& kept : job.kept_shards_) {
          std::erase_if(kept.shards,
                        [&](const auto& one) { return one.second.version > model.version; });
        }
        co_await call(all, "void steps forgotten");
      }
      survivors = nullptr;
      loader = boundary_cursor;
      was_moved = true;
      co_return outcome::Joined{.steps = model.steps};
    case Action::kCompareReplicas: {
      const Row own = model.row();
      const Group::Call* const compared = co_await call(all, "compare", own);
      job.check_same(*this, "replicas", own, compared->rows);
      break;
    }
    case Action::kKeepShards:
      co_await keep_shards();
      break;
    case Action::kKeepCopy:
      if (rank != 0 || state.keeps_shards) break;
      co_await yield();
      job.memory_ = std::make_shared<Snapshot>(snapshot());
      break;
    case Action::kSaveSnapshot:
      co_await save_snapshot();
      break;
    case Action::kCheckGeneration:
      if (has_news() && job.draw(0, 1) == 0) throw GroupIsLost();
      break;
    case Action::kAwaitVerdict:
      co_await wait(Waits::kForVerdict);
      if (has_news()) throw GroupIsLost();
      has_verdict = true;
      break;
    case Action::kJoinSurvivors:
      used = survivors;
      co_await call(survivors, "join");
      if (state.keeps_shards) check_shards();
      break;
    case Action::kRunSection:
      co_await (*section)();
      break;
    case Action::kBarrier:
      if (state.stage == RecoveryStage::kEnding) end_barriers = 0;
      co_await call(survivors ? survivors : all, "barrier");
      ++end_barriers;
      break;
    default:
      job.fail(concat("not carried out: ", name_of(action)));
  }
  co_return outcome::Done{};
}

void SimulatedTraining::Process::leave_groups() {
  for (const auto& group : {all, survivors}) {
    if (group) group->is_gone[group->rank_of(this)] = true;
  }
  all = survivors = used = nullptr;
}

void SimulatedTraining::Process::take_rank() {
  place_is_over = false;
  for (const Message& message : inbox) {
    if (message.is_place) {
      generation = message.generation;
      rank = message.rank;
      steps_made = message.steps_made;
      place_is_over = false;
      is_standby = false;
    } else if (message.generation == generation) {
      place_is_over = true;
    }
  }
  inbox.clear();
}

SimulatedTraining::Task SimulatedTraining::Process::gather_reports() {
  RankReport own = state.report();
  if (state.held == HeldState::kNone && rank == 0 && job.memory_)
    own.memory = job.memory_->standing;
  own.loads_snapshot = loads_snapshot && job.disk_;
  if (job.options_.owns_loop) {
    if (state.held == HeldState::kNone && job.disk_) own.snapshot_steps = job.steps_on_disk_;
    own.known_boundaries = std::max(own.known_boundaries, steps_made > 0 ? steps_made : -1);
  }
  Row row{own.is_new,         own.is_at_boundary,         own.is_discarding,    own.boundaries,
          own.sections,       static_cast<int>(own.held), own.state.generation, own.state.steps,
          own.state.is_end,   own.memory.generation,      own.memory.steps,     own.memory.is_end,
          own.snapshot_steps, own.loads_snapshot,         own.known_boundaries};
  const Group::Call* const gathered = co_await call(all, "gather reports", std::move(row));
  reports.clear();
  for (const Row& one : gathered->rows) {
    reports.push_back({.is_new = one[0] != 0,
                       .is_at_boundary = one[1] != 0,
                       .is_discarding = one[2] != 0,
                       .boundaries = one[3],
                       .sections = one[4],
                       .held = static_cast<HeldState>(one[5]),
                       .state = {one[6], one[7], one[8] != 0},
                       .memory = {one[9], one[10], one[11] != 0},
                       .snapshot_steps = one[12],
                       .loads_snapshot = one[13] != 0,
                       .known_boundaries = one[14]});
  }
  co_return true;
}

// No rank loses a boundary that it has passed, and no training begins anew by itself.
void SimulatedTraining::Process::check_choice() const {
  if (state.source.kind == SourceChoice::Kind::kBegin && job.most_steps_ > 0)
    job.fail(concat("process ", id, " begins anew after ", job.most_steps_, " steps"));
  for (const RankReport& report : reports) {
    if (report.held == HeldState::kWhole && report.state.steps > state.source.standing.steps)
      job.fail(concat("process ", id, ": a state goes back from boundary ", report.state.steps,
                      " to ", state.source.standing.steps));
  }
}

SimulatedTraining::Task SimulatedTraining::Process::exchange_state() {
  std::shared_ptr<const Snapshot> sent;
  if (state.source.kind == SourceChoice::Kind::kMemory) {
    const bool all_load = job.options_.save_every > 0 && !job.options_.owns_loop &&
                          std::ranges::all_of(reports, [](const RankReport& report) {
                            return report.boundaries == 0;
                          });
    if (all_load && job.options_.extra_update_every == 0 && job.is_disk_newer())
      job.fail("a copy in memory counts that is older than the snapshot");
    if (state.is_source) sent = job.memory_;
    job.lines_.clear();
  } else if (state.is_source) {
    sent = std::make_shared<Snapshot>(snapshot());
    if (sent->is_uncertain) job.took_uncertain_ = true;
  }
  const Group::Call* const exchanged =
      co_await call(all, "exchange state", {}, state.source.rank, std::move(sent));
  received = exchanged->sent;
  co_return true;
}

bool SimulatedTraining::KeptShards::is_complete(int version) const {
  const auto first = shards.find(0);
  if (first == shards.end() || first->second.version != version) return false;
  for (std::size_t other = 0; other < first->second.ranks; ++other) {
    const auto shard = shards.find(other);
    if (shard == shards.end() || shard->second.version != version ||
        shard->second.ranks != first->second.ranks)
      return false;
  }
  return true;
}

SimulatedTraining::KeptShards* SimulatedTraining::find_shards(int version) {
  const auto kept = std::ranges::find_if(
      kept_shards_, [&](const KeptShards& one) { return one.is_complete(version); });
  return kept == kept_shards_.end() ? nullptr : &*kept;
}

SimulatedTraining::KeptShards& SimulatedTraining::free_shards(int version, int other) {
  const auto is_free = [&](const KeptShards& one) {
    return &one != find_shards(version) && &one != find_shards(other);
  };
  return *std::ranges::find_if(kept_shards_, is_free);
}

SimulatedTraining::Task SimulatedTraining::Process::keep_shards() {
  KeptShards& kept = job.free_shards(model.version, remembered.version);
  const std::size_t own = all->rank_of(this);
  kept.shards.erase(own);
  co_await yield();
  kept.shards[own] = {model.version + 1, all->members.size(), model.hash};
  co_await call(all, "keep shards");
  ++model.version;
  co_return true;
}

bool SimulatedTraining::Process::settle_shards() {
  const bool is_complete = job.find_shards(model.version + 1) != nullptr;
  if (is_complete) ++model.version;
  return is_complete;
}

// All shards of one state, and that of what this rank goes on with.
void SimulatedTraining::Process::check_shards() {
  const KeptShards* const kept = job.find_shards(model.version);
  if (kept == nullptr) return job.fail(concat("process ", id, " finds no shards of its state"));
  for (std::size_t other = 0; other < kept->shards.at(0).ranks; ++other) {
    if (kept->shards.at(other).hash != model.hash)
      job.fail(concat("process ", id, ": the shard of rank ", other, " is of another state"));
  }
}

SimulatedTraining::Task SimulatedTraining::Process::save_snapshot() {
  co_await call(all, "save a snapshot", model.row());
  if (rank == 0) {
    co_await yield();
    job.write_to_disk(snapshot());
  }
  co_return true;
}

// The newest may be damaged; what is older than the copy in memory then counts on no rank.
SimulatedTask<RecoveryEvent> SimulatedTraining::Process::load_snapshot() {
  std::shared_ptr<const Snapshot> sent;
  if (!job.memory_ || job.draw(0, 2) > 0) sent = job.disk_;
  const Group::Call* const loaded = co_await call(all, "load a snapshot", {}, 0, std::move(sent));
  if (!loaded->sent) co_return outcome::SnapshotLoaded{};
  received = loaded->sent;
  co_await yield();
  take_state();
  co_return outcome::SnapshotLoaded{.steps = model.steps};
}

SimulatedTraining::Snapshot SimulatedTraining::Process::snapshot() const {
  return {.model = model,
          .cursor = boundary_cursor,
          .most_updates = std::max(most_updates, updates),
          .standing = state.standing(),
          .is_uncertain = state.held == HeldState::kUncertain};
}

void SimulatedTraining::Process::take_state() {
  model = received->model;
  check_counted_steps();
  boundary_cursor = loader = received->cursor;
  most_updates = received->most_updates;
  updates = undone_updates = 0;
  undo.reset();
  received = nullptr;
}

// No step of which the program knows that it counts is made again.
void SimulatedTraining::Process::check_counted_steps() {
  if (model.steps < counted_steps)
    job.fail(concat("process ", id, " goes back to step ", model.steps, " from ", counted_steps));
}

bool SimulatedTraining::Process::roll_back() {
  const bool is_whole = state.keeps_shards ? job.find_shards(remembered.version) != nullptr
                                           : undone_updates == updates;
  if (state.keeps_shards) {
    model = remembered;
    boundary_cursor = remembered_cursor;
  } else if (is_whole && undo) {
    model.hash = undo->hash;
    model.trained = undo->trained;
  }
  model.steps = remembered.steps;
  check_counted_steps();
  model.evaluations = remembered.evaluations;
  model.tail = remembered.tail;
  updates = undone_updates = 0;
  undo.reset();
  batches_of_step = 0;
  return is_whole;
}

void SimulatedTraining::Process::remember() {
  lines_of_survivor.clear();
  remembered = model;
  remembered_cursor = boundary_cursor;
  most_updates = std::max(most_updates, updates);
  updates = undone_updates = 0;
  is_extended = false;
  undo.reset();
}

}  // namespace lockstep::inline internal
