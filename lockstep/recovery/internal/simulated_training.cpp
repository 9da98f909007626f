#include "lockstep/recovery/internal/simulated_training.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <optional>
#include <string_view>

#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

using Action = RecoveryAction;
using Phase = RecoveryPhase;

// More than any job of these sizes takes.
constexpr std::uint64_t kMostTicks = 200'000;

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15ULL + (hash << 6U) + (hash >> 2U);
  return hash * 0xff51afd7ed558ccdULL;
}

}  // namespace

// The error of a collective whose group is lost.
struct SimulatedTraining::GroupIsLost {};

// Another error, which ends the process. `is_expected`: where nothing is wrong with the recovery.
struct SimulatedTraining::ProgramError {
  std::string text;
  bool is_expected = false;
};

// All that a rank trains, and what the program has registered.
struct SimulatedTraining::Model {
  int trained = 0;  ///< batches
  std::uint64_t hash = 1;
  int steps = 0;
  int evaluations = 0;
  std::uint64_t tail = 1;  ///< of what was gathered in tails of steps

  Row row() const {
    Row all = row_of_step();
    all.push_back(static_cast<std::int64_t>(tail));
    return all;
  }
  // In a tail in which a rank is lost, what was gathered differs.
  Row row_of_step() const { return {trained, static_cast<std::int64_t>(hash), steps, evaluations}; }
};

struct SimulatedTraining::Cursor {
  int epoch = 0;
  int batch = 0;
};

enum class SimulatedTraining::LoaderVisit { kLoopBegins, kNextBatch, kLoopEnds };

struct SimulatedTraining::Snapshot {
  Model model;
  Cursor cursor;
  int most_updates = 0;
  Standing standing{};
  bool is_uncertain = false;
};

struct SimulatedTraining::Group {
  struct Call {
    std::string_view kind;
    std::vector<Row> rows;
    std::vector<bool> has_entered;
    std::size_t entered = 0;
    std::shared_ptr<const Snapshot> sent{};
    std::shared_ptr<Group> made{};
  };

  explicit Group(std::size_t ranks) : members(ranks), next(ranks), is_gone(ranks) {}

  std::vector<Process*> members;  ///< null: one that has not joined
  std::vector<std::size_t> next;  ///< call, by rank
  std::vector<bool> is_gone;
  std::deque<Call> calls;

  bool is_complete() const { return std::ranges::count(members, nullptr) == 0; }
  bool is_broken() const { return std::ranges::count(is_gone, true) > 0; }
  std::size_t rank_of(const Process* process) const {
    return static_cast<std::size_t>(std::ranges::find(members, process) - members.begin());
  }
};

// A process of the job, and the program that it runs.
struct SimulatedTraining::Process {
  enum class Waits { kForNothing, kForCall, kForGroup, kForPlace, kForVerdict };
  struct Message {
    bool is_place = false;
    std::uint64_t generation = 0;
    int rank = 0;
    std::int64_t steps_made = 0;
  };

  Process(SimulatedTraining& simulated_job, int number, int its_rank, bool standby)
      : job(simulated_job), id(number), rank(its_rank), is_standby(standby) {
    state.memory_every = job.options_.memory_every;
    state.check_replicas_every = job.options_.check_replicas_every;
    if (job.options_.owns_loop) state.save_every = job.options_.snapshot_every;
  }

  // What a process waits for, until the job resumes it.
  auto wait(Waits what) {
    struct Awaiter {
      Process& process;
      bool await_ready() const { return false; }
      void await_suspend(std::coroutine_handle<> at) const { process.resumes_at = at; }
      void await_resume() const {
        if (std::exchange(process.loses_group, false)) throw GroupIsLost();
      }
    };
    waits = what;
    return Awaiter{*this};
  }
  auto yield() { return wait(Waits::kForNothing); }
  bool has_news() const { return !inbox.empty() || place_is_over; }

  SimulatedTask<Group::Call*> call(std::shared_ptr<Group> group, const char* kind, Row row = {},
                                   int source = -1, std::shared_ptr<const Snapshot> sent = {});
  Task form_group();
  SimulatedTask<Action> carry_out(RecoveryEvent event, const Section* section = nullptr);
  SimulatedTask<RecoveryEvent> perform(Action action, const Section* section);
  Task gather_reports();
  Task exchange_state();
  Task save_snapshot();
  SimulatedTask<RecoveryEvent> load_snapshot();
  void take_state();
  bool roll_back();
  void remember();
  void leave_groups();
  void take_place();
  Snapshot snapshot() const;
  void check_choice() const;

  // The Accelerator.
  Task visit(LoaderVisit at);
  Task attempt(const char* kind, Row row);
  Task run_on_survivors(const Section& section);
  Task call_in_section(const char* kind, Row row);
  Task end_training();
  Task update(int optimizer);
  int expected_updates() const { return std::max(most_updates, job.options_.optimizers); }

  // The program.
  Task program();
  Task prepare();
  Task loop();
  Task make_step();
  Task tail(int steps_before);
  Task evaluate();
  Task save();
  void print(const std::string& line);

  // The recovery's own loop.
  Task own_loop();
  Task make_own_step();
  Task call_in_step(const char* kind);

  bool is_due(int steps_before, int every) const {
    return every > 0 && model.steps != steps_before && model.steps % every == 0;
  }

  SimulatedTraining& job;
  const int id;
  int rank;
  bool is_standby;
  bool is_alive = true;
  bool ended_well = false;
  bool has_announced = false;  ///< the launcher knows that it keeps its state
  bool is_done = false;
  std::uint64_t generation = 0;
  std::int64_t steps_made = 0;  ///< that the launcher knew of when it gave the place
  std::vector<Message> inbox{};
  bool place_is_over = false;

  RecoveryState state{};
  std::vector<RankReport> reports{};
  bool loads_snapshot = false;  ///< arrives where it is about to load one
  std::shared_ptr<Group> all{};
  std::shared_ptr<Group> survivors{};
  std::shared_ptr<Group> used{};  ///< null: it goes on alone
  std::shared_ptr<const Snapshot> received{};

  Model model{};
  Cursor loader{};
  Cursor boundary_cursor{};
  bool was_moved = false;
  Model remembered{};
  std::optional<Model> undo{};
  int updates = 0;
  int undone_updates = 0;
  int most_updates = 0;
  bool is_extended = false;
  int batches_of_step = 0;
  std::vector<std::string> lines_of_survivor{};  ///< since the last boundary

  Waits waits = Waits::kForNothing;
  std::coroutine_handle<> resumes_at{};
  std::shared_ptr<Group> waits_in{};
  std::size_t call_number = 0;
  int call_source = -1;
  bool loses_group = false;
  bool next_call_fails = false;
  bool throws_soon = false;
  int end_barriers = 0;      ///< passed, at the training's end
  bool has_verdict = false;  ///< that the generation is not over
  bool knows_end = false;    ///< when it announced its end it had passed both, or had the verdict
  Task main{};
};

// Collectives.

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
      next = outcome::GroupLost{};
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
      take_place();
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
    case Action::kJoinAll:
      if (state.source.kind == SourceChoice::Kind::kOwn) check_choice();
      if (state.held != HeldState::kWhole && !state.begins_anew)
        job.fail(concat("process ", id, " has no state"));
      used = all;
      co_await call(all, "join");
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
    case Action::kKeepCopy:
      if (rank != 0) break;
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

void SimulatedTraining::Process::take_place() {
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
  own.prefers_snapshot =
      loads_snapshot && job.disk_ && (!own.memory.exists() || job.is_disk_newer());
  if (job.options_.owns_loop) {
    if (state.held == HeldState::kNone && job.disk_) own.snapshot_steps = job.disk_->model.steps;
    own.known_boundaries = std::max(own.known_boundaries, steps_made > 0 ? steps_made : -1);
  }
  Row row{own.is_new,         own.is_at_boundary,         own.is_discarding,    own.boundaries,
          own.sections,       static_cast<int>(own.held), own.state.generation, own.state.steps,
          own.state.is_end,   own.memory.generation,      own.memory.steps,     own.memory.is_end,
          own.snapshot_steps, own.prefers_snapshot,       own.known_boundaries};
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
                       .prefers_snapshot = one[13] != 0,
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

SimulatedTraining::Task SimulatedTraining::Process::save_snapshot() {
  co_await call(all, "save a snapshot", model.row());
  if (rank == 0) {
    co_await yield();
    job.disk_ = std::make_shared<Snapshot>(snapshot());
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
  boundary_cursor = loader = received->cursor;
  most_updates = received->most_updates;
  updates = undone_updates = 0;
  undo.reset();
  received = nullptr;
}

bool SimulatedTraining::Process::roll_back() {
  const bool is_whole = undone_updates == updates;
  if (is_whole && undo) {
    model.hash = undo->hash;
    model.trained = undo->trained;
  }
  model.steps = remembered.steps;
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
  most_updates = std::max(most_updates, updates);
  updates = undone_updates = 0;
  is_extended = false;
  undo.reset();
}

// The Accelerator.

SimulatedTraining::Task SimulatedTraining::Process::visit(LoaderVisit at) {
  was_moved = false;
  const int batches = job.options_.batches;
  if (state.phase == Phase::kEnded) co_return true;
  if (state.phase == Phase::kInactive) {
    if (at != LoaderVisit::kLoopBegins) co_return true;
    co_await attempt("training id", {});
    boundary_cursor = loader;
    job.lines_.clear();  // It begins anew.
    job.check_furthest(*this);
    co_await carry_out(called::Activate{});
  } else {
    if (batches_of_step != 0 && state.phase == Phase::kTraining) {
      is_extended = true;
      co_return true;
    }
    if (!state.is_discarding()) boundary_cursor = loader;
    const bool was_finishing = state.phase == Phase::kFinishing;
    co_await carry_out(called::Boundary{
        .kind = at == LoaderVisit::kLoopEnds ? BoundaryKind::kEpochEnd : BoundaryKind::kStep,
        .steps = model.steps});
    if (state.phase == Phase::kFinishing) {
      loader = {.epoch = was_finishing ? loader.epoch : std::max(loader.epoch - 1, 0),
                .batch = batches};
      was_moved = true;
      co_return true;
    }
  }
  if (loader.batch < batches) state.progress = StepProgress::kOpen;
  co_return true;
}

// False: this rank's own values, or those of a part of the ranks.
SimulatedTraining::Task SimulatedTraining::Process::attempt(const char* kind, Row row) {
  if (!used) {
    state.note_collective();
    co_return false;
  }
  bool is_lost = false;
  try {
    const Group::Call* const done = co_await call(used, kind, row);
    job.check_same(*this, kind, row, done->rows);
  } catch (const GroupIsLost&) {
    is_lost = true;
  }
  if (!is_lost) {
    state.note_collective();
    co_return used->members.size() == all->members.size();
  }
  if (co_await carry_out(called::CollectiveFailed{}) == Action::kDecline) {
    throw ProgramError{.text = concat("the program's own: ", kind),
                       .is_expected = state.phase == Phase::kInactive};
  }
  co_return false;
}

// The section ends with the error, or it has a result of a part of the ranks.
SimulatedTraining::Task SimulatedTraining::Process::call_in_section(const char* kind, Row row) {
  bool is_lost = false;
  try {
    const Group::Call* const done = co_await call(used, kind, row);
    job.check_same(*this, kind, row, done->rows);
  } catch (const GroupIsLost&) {
    is_lost = true;
  }
  if (!is_lost) co_return true;
  const bool is_in_step = state.progress == StepProgress::kOpen;
  if (!is_in_step && co_await carry_out(called::CollectiveFailed{}) != Action::kDecline)
    job.fail(concat("process ", id, ": a section has a part of its results"));
  throw GroupIsLost();
}

SimulatedTraining::Task SimulatedTraining::Process::run_on_survivors(const Section& section) {
  const Action action = co_await carry_out(called::RunOnSurvivors{}, &section);
  if (action == Action::kDecline) co_return false;
  if (action == Action::kReturn) co_return true;
  bool is_lost = false;
  try {
    co_await section();
  } catch (const GroupIsLost&) {
    is_lost = true;
  }
  if (!is_lost) co_return true;
  if (action == Action::kRunAlone ||
      co_await carry_out(called::CollectiveFailed{}) == Action::kDecline)
    throw ProgramError{.text = "a section failed"};
  co_return false;
}

SimulatedTraining::Task SimulatedTraining::Process::end_training() {
  if (!state.is_active()) co_return true;
  if (!state.is_discarding()) boundary_cursor = loader;
  co_await carry_out(called::Boundary{.kind = BoundaryKind::kTrainingEnd, .steps = model.steps});
  co_return state.phase == Phase::kEnded;
}

SimulatedTraining::Task SimulatedTraining::Process::update(int optimizer) {
  if (state.phase == Phase::kGroupLost || state.phase == Phase::kSurvivors)
    co_await carry_out(called::MoreUpdates{});
  if (state.has_lost_group()) co_return true;
  co_await yield();
  if (!(++updates >= expected_updates() && !is_extended)) {
    ++undone_updates;
    if (!undo) undo = model;
  }
  if (job.is_trained_) job.fail(concat("process ", id, " makes a step after the training's end"));
  const int first = loader.epoch * job.options_.batches + loader.batch - batches_of_step;
  if (optimizer == 0 && model.trained != first && !state.is_discarding()) {
    job.fail(concat("process ", id, ": batch ", first, " after ", model.trained, " batches"));
  }
  model.hash = mix(model.hash,
                   mix(static_cast<std::uint64_t>(first), static_cast<std::uint64_t>(optimizer)));
  if (optimizer == 0) ++model.steps;
  co_await yield();
  if (optimizer + 1 == job.options_.optimizers) model.trained += batches_of_step;
  if (state.progress != StepProgress::kNone) {
    state.progress = updates >= expected_updates() ? StepProgress::kComplete : StepProgress::kOpen;
  }
  co_return true;
}

// The recovery's own loop, which repeats a step that throws.

SimulatedTraining::Task SimulatedTraining::Process::own_loop() {
  co_await carry_out(called::Join{.generation = generation,
                                  .rank = rank,
                                  .can_recover = true,
                                  .is_standby = is_standby,
                                  .owns_loop = true});
  while (state.phase != Phase::kEnded) {
    if (state.phase != Phase::kTraining) job.fail(concat("a loop in ", name_of(state.phase)));
    const bool is_end = model.steps >= job.options_.epochs * job.options_.batches;
    bool is_lost = false;
    try {
      if (!is_end) co_await make_own_step();
    } catch (const GroupIsLost&) {
      is_lost = true;
    }
    if (!is_lost) {
      co_await carry_out(called::Boundary{
          .kind = is_end ? BoundaryKind::kTrainingEnd : BoundaryKind::kStep, .steps = model.steps});
      job.most_steps_ = std::max(job.most_steps_, model.steps);
    } else if (co_await carry_out(called::StepFailed{}) == Action::kDecline) {
      job.fail(concat("process ", id, " does not recover from a step that failed"));
    }
  }
  co_return true;
}

SimulatedTraining::Task SimulatedTraining::Process::make_own_step() {
  co_await call_in_step("ask");  // Whether a rank is preempted: outside of the step.
  state.progress = StepProgress::kOpen;
  co_await yield();
  if (std::exchange(throws_soon, false))
    throw ProgramError{.text = "the program throws", .is_expected = true};
  if (job.options_.exchanges_buffers) co_await call_in_step("buffers");
  co_await call_in_step("exchange");
  co_await yield();
  ++updates;
  if (job.is_trained_) job.fail(concat("process ", id, " makes a step after the training's end"));
  if (model.trained != model.steps)
    job.fail(concat("process ", id, ": step ", model.steps, " after ", model.trained, " steps"));
  model.hash = mix(model.hash, static_cast<std::uint64_t>(model.steps));
  co_await yield();
  ++model.trained;
  if (job.options_.gathers_in_tail) {
    co_await call_in_step("gather");
    model.tail = mix(model.tail, 0);
  }
  ++model.steps;
  co_return true;
}

SimulatedTraining::Task SimulatedTraining::Process::call_in_step(const char* kind) {
  const Row own = model.row();
  const Group::Call* const done = co_await call(used, kind, own);
  job.check_same(*this, kind, own, done->rows);
  co_return true;
}

// The program.

SimulatedTraining::Task SimulatedTraining::Process::program() {
  co_await carry_out(called::Join{
      .generation = generation, .rank = rank, .can_recover = true, .is_standby = is_standby});
  co_await prepare();
  co_await carry_out(called::Arrive{});
  const int epochs = job.options_.epochs;
  int epoch = loader.epoch;
  std::int64_t recoveries = state.recoveries;
  for (;;) {
    if (epoch >= epochs) {
      if (co_await end_training()) co_return true;
      epoch = loader.epoch;
    }
    co_await loop();
    if (job.options_.evaluates_epochs && co_await evaluate()) {
      ++model.evaluations;
      print(concat("epoch ", loader.epoch));
    }
    const bool was_disturbed = std::exchange(recoveries, state.recoveries) != state.recoveries;
    if (loader.epoch == epoch && !was_disturbed)
      throw ProgramError{.text = "an epoch without a loop"};
    epoch = loader.epoch;
  }
}

SimulatedTraining::Task SimulatedTraining::Process::prepare() {
  if (!state.is_discarding()) co_await attempt("prepare", {});
  if (job.options_.save_every == 0) co_return true;
  if (state.is_discarding()) {
    loads_snapshot = true;
    co_await carry_out(called::Arrive{});
    loads_snapshot = false;
    if (state.is_discarding()) co_return true;
  }
  bool is_lost = false;
  try {
    const Group::Call* const loaded = co_await call(all, "load", {}, 0, job.disk_);
    if (loaded->sent) {
      model = loaded->sent->model;
      loader = loaded->sent->cursor;
    }
  } catch (const GroupIsLost&) {
    is_lost = true;
  }
  if (is_lost) throw ProgramError{.text = "load", .is_expected = true};
  co_return true;
}

SimulatedTraining::Task SimulatedTraining::Process::loop() {
  co_await visit(LoaderVisit::kLoopBegins);
  for (;;) {
    if (loader.batch >= job.options_.batches) {
      loader = {.epoch = loader.epoch + 1, .batch = 0};
      co_return true;
    }
    ++loader.batch;
    co_await make_step();
    const bool is_all = model.trained == job.options_.epochs * job.options_.batches;
    if (job.options_.ends_in_loop && is_all && !state.is_discarding()) {
      loader = {.epoch = loader.epoch + 1, .batch = 0};
      co_return true;
    }
    const bool is_last = loader.batch == job.options_.batches;
    co_await visit(is_last ? LoaderVisit::kLoopEnds : LoaderVisit::kNextBatch);
  }
}

SimulatedTraining::Task SimulatedTraining::Process::make_step() {
  const SimulatedTrainingOptions& options = job.options_;
  ++batches_of_step;
  const bool is_sync = batches_of_step >= options.accumulation || loader.batch == options.batches;
  const int steps_before = model.steps;
  co_await yield();
  if (std::exchange(throws_soon, false))
    throw ProgramError{.text = "the program throws", .is_expected = true};
  if (options.exchanges_buffers) co_await attempt("buffers", model.row());
  if (options.evaluates_in_step && batches_of_step == 1 && co_await evaluate()) ++model.evaluations;
  for (int optimizer = 0; optimizer < options.optimizers && is_sync; ++optimizer) {
    if (!state.has_lost_group()) co_await attempt("exchange", model.row());
    co_await update(optimizer);
  }
  if (is_sync) {
    co_await tail(steps_before);
    batches_of_step = 0;
  }
  co_return true;
}

SimulatedTraining::Task SimulatedTraining::Process::tail(int steps_before) {
  const SimulatedTrainingOptions& options = job.options_;
  const bool has_extra = is_due(steps_before, options.extra_update_every);
  if (options.gathers_in_tail) {
    const bool is_of_all = co_await attempt("gather", model.row_of_step());
    model.tail = mix(model.tail, is_of_all ? 0 : 100 + static_cast<std::uint64_t>(id));
  }
  if (is_due(steps_before, options.evaluate_every) && co_await evaluate()) ++model.evaluations;
  if (options.gathers_in_tail) {
    const bool is_of_all = co_await attempt("gather", model.row_of_step());
    model.tail = mix(model.tail, is_of_all ? 1 : 100 + static_cast<std::uint64_t>(id));
  }
  if (has_extra) {
    if (!state.has_lost_group()) co_await attempt("exchange", model.row_of_step());
    co_await update(options.optimizers);
  }
  if (is_due(steps_before, options.save_every)) co_await save();
  co_return true;
}

SimulatedTraining::Task SimulatedTraining::Process::evaluate() {
  const Section section = [this]() -> Task {
    for (int part = 0; part < 2; ++part) {
      Row own = model.row_of_step();
      own.push_back(part);
      co_await call_in_section("evaluate", own);
    }
    co_return true;
  };
  co_return co_await run_on_survivors(section);
}

SimulatedTraining::Task SimulatedTraining::Process::save() {
  const Section section = [this]() -> Task {
    const Row own = model.row_of_step();
    co_await call_in_section("save", own);
    if (used->rank_of(this) == 0) {
      co_await yield();
      Snapshot saved = snapshot();
      saved.cursor = loader;
      if (saved.is_uncertain) job.took_uncertain_ = true;
      job.disk_ = std::make_shared<Snapshot>(saved);
    }
    co_await call(used, "saved");
    co_return true;
  };
  const bool is_saved = co_await run_on_survivors(section);
  if (is_saved && (!job.disk_ || job.disk_->model.steps < model.steps))
    job.fail(concat("process ", id, ": there is no snapshot of step ", model.steps));
  co_return true;
}

void SimulatedTraining::Process::print(const std::string& line) {
  // A step, or an uncertain state, may be given up when its lines are printed.
  const bool is_certain = state.held == HeldState::kWhole && state.progress == StepProgress::kNone;
  if (!is_certain) job.may_lack_lines_ = true;
  if (state.is_discarding() || !state.is_main || !is_certain) return;
  if (!job.lines_.insert(line).second) job.fail(concat("printed twice: ", line));
  if (state.phase == Phase::kSurvivors) lines_of_survivor.push_back(line);
}

// The job.

SimulatedTraining::SimulatedTraining(const SimulatedTrainingOptions& options,
                                     RecoveryCoverage* coverage)
    : options_(options),
      random_(options.seed),
      coverage_(coverage),
      wanted_world_size_(options.ranks) {
  plan_expectations();
  restart_all();
  restarts_ = 0;
}

SimulatedTraining::~SimulatedTraining() = default;

int SimulatedTraining::draw(int least, int most) {
  return least + static_cast<int>(random_() % static_cast<std::uint64_t>(most - least + 1));
}

void SimulatedTraining::fail(const std::string& what) {
  if (violation_.empty()) violation_ = what;
}

void SimulatedTraining::trace(const Process& process, const std::string& what) const {
  if (!options_.traces) return;
  std::printf("%6lu  process %d, rank %d of generation %lu, %-10s  %s\n", ticks_, process.id,
              process.rank, process.generation, name_of(process.state.phase), what.c_str());
}

// What the undisturbed program ends with.
void SimulatedTraining::plan_expectations() {
  Model model;
  for (int step = 0; options_.owns_loop && step < options_.epochs * options_.batches; ++step) {
    model.hash = mix(model.hash, static_cast<std::uint64_t>(step));
    if (options_.gathers_in_tail) model.tail = mix(model.tail, 0);
  }
  for (int epoch = 0; !options_.owns_loop && epoch < options_.epochs; ++epoch) {
    for (int batch = 0; batch < options_.batches; batch += options_.accumulation) {
      const auto first = static_cast<std::uint64_t>(epoch * options_.batches + batch);
      if (options_.evaluates_in_step) ++model.evaluations;
      for (int optimizer = 0; optimizer < options_.optimizers; ++optimizer)
        model.hash = mix(model.hash, mix(first, static_cast<std::uint64_t>(optimizer)));
      ++model.steps;
      const auto is_due = [&](int every) { return every > 0 && model.steps % every == 0; };
      if (options_.gathers_in_tail) model.tail = mix(mix(model.tail, 0), 1);
      if (is_due(options_.evaluate_every)) ++model.evaluations;
      if (is_due(options_.extra_update_every)) {
        const auto extra = static_cast<std::uint64_t>(options_.optimizers);
        model.hash = mix(model.hash, mix(first, extra));
      }
    }
    if (options_.evaluates_epochs) ++model.evaluations;
  }
  final_hash_ = model.hash;
  final_evaluations_ = model.evaluations;
  final_tail_ = model.tail;
}

void SimulatedTraining::expect_end(const Process& process) {
  const Model& model = process.model;
  const int batches = options_.epochs * options_.batches;
  if (process.state.phase != Phase::kEnded) fail(concat("process ", process.id, " ends too early"));
  if (model.trained != batches || model.hash != final_hash_)
    fail(concat("process ", process.id, " ends with ", model.trained, " of ", batches, " batches"));
  if (model.evaluations != final_evaluations_)
    fail(concat("process ", process.id, " ends with ", model.evaluations, " evaluations of ",
                final_evaluations_));
  if (model.tail != final_tail_ && !took_uncertain_)
    fail(concat("process ", process.id, " ends with values of its own"));
  const bool prints = options_.evaluates_epochs && !options_.owns_loop;
  const std::size_t epochs = prints ? static_cast<std::size_t>(options_.epochs) : 0;
  if (!was_killed_ && !may_lack_lines_ && lines_.size() != epochs)
    fail(concat(lines_.size(), " lines of ", epochs));
  if (!memory_ || !memory_->standing.is_end || memory_->model.hash != model.hash)
    fail("there is no copy of the end in memory");
  const int every = options_.snapshot_every;
  if (was_disturbed_ || !options_.owns_loop || every == 0 || model.steps < every) return;
  if (!disk_ || disk_->model.steps != model.steps / every * every) fail("there is no snapshot");
}

// A process begins or goes on where no process has the state.
void SimulatedTraining::check_furthest(const Process& process) {
  for (const auto& kept : {memory_, disk_}) {
    if (kept && kept->model.steps > process.model.steps)
      fail(concat("process ", process.id, " goes on from step ", process.model.steps, ", and step ",
                  kept->model.steps, " is kept"));
  }
}

SimulatedTraining::Process& SimulatedTraining::start(int rank, bool is_standby) {
  processes_.push_back(
      std::make_unique<Process>(*this, static_cast<int>(processes_.size()), rank, is_standby));
  Process& process = *processes_.back();
  process.generation = is_standby ? 0 : generation_;
  process.steps_made = steps_made_;
  process.main = options_.owns_loop ? process.own_loop() : process.program();
  if (!is_standby) places_[static_cast<std::size_t>(rank)] = &process;
  return process;
}

std::vector<SimulatedTraining::Process*> SimulatedTraining::living() const {
  std::vector<Process*> alive;
  for (const auto& process : processes_) {
    if (process->is_alive) alive.push_back(process.get());
  }
  return alive;
}

void SimulatedTraining::end(Process& process, bool failed) {
  process.is_alive = false;
  process.ended_well = !failed && !process.has_announced;
  steps_made_ = std::max(steps_made_, process.state.boundaries);
  process.leave_groups();
  for (const auto& [generation, group] : groups_) {
    const std::size_t rank = group->rank_of(&process);
    if (rank < group->members.size()) group->is_gone[rank] = true;
  }
  const bool has_place = std::ranges::count(places_, &process) > 0;
  if (has_place && process.ended_well) ended_well_ = true;
  if (has_place && !process.ended_well) is_over_ = true;
}

void SimulatedTraining::kill(Process& process) {
  if (!process.is_alive) return;
  trace(process, "is killed");
  // It alone knew that it had printed them.
  for (const std::string& line : process.lines_of_survivor) lines_.erase(line);
  was_killed_ = true;
  process.main = Task();
  process.has_announced = false;
  end(process, /*failed=*/true);
}

void SimulatedTraining::kill_rank(int rank) {
  kill(*places_[static_cast<std::size_t>(rank)]);
}

void SimulatedTraining::inject(SimulatedFault fault) {
  const std::vector<Process*> alive = living();
  if (alive.empty()) return;
  was_disturbed_ = true;
  Process& victim = *alive[static_cast<std::size_t>(draw(0, static_cast<int>(alive.size()) - 1))];
  switch (fault) {
    case SimulatedFault::kKill:
      return kill(victim);
    case SimulatedFault::kKillTwo:
      kill(victim);
      return kill(*alive[static_cast<std::size_t>(draw(0, static_cast<int>(alive.size()) - 1))]);
    case SimulatedFault::kCollectiveFails:
      victim.next_call_fails = victim.state.phase != Phase::kInactive;
      return;
    case SimulatedFault::kProgramThrows:
      victim.throws_soon = true;
      return;
    case SimulatedFault::kResize:
      wanted_world_size_ = draw(1, 4);
      if (wanted_world_size_ != world_size_) is_over_ = true;
      return;
  }
}

// The launcher.

// A rank ended well while the launcher gave it a place in the next generation: the others wait for
// it until their timeout expires.
bool SimulatedTraining::waits_for_ended_rank() const {
  if (!ended_well_) return false;
  return std::ranges::all_of(
             places_,
             [&](const Process* process) {
               return !process->is_alive ||
                      (process->waits == Process::Waits::kForGroup && !can_run(*process));
             }) &&
         std::ranges::any_of(places_, &Process::is_alive);
}

bool SimulatedTraining::launcher_has_work() const {
  if (is_over_ || is_between_ || waits_for_ended_rank()) return true;
  int standbys = 0;
  bool keeps_some = false;
  for (const Process* const process : living()) {
    if (process->is_standby) ++standbys;
    if (!process->is_standby && process->has_announced) keeps_some = true;
  }
  return keeps_some && standbys < options_.standby_workers;
}

void SimulatedTraining::run_launcher() {
  if (is_between_) return begin_generation();
  if (is_over_) return end_generation();
  if (waits_for_ended_rank()) return restart_all();
  start(-1, /*is_standby=*/true);
}

void SimulatedTraining::end_generation() {
  const auto is_kept = [](const Process* process) {
    return process->is_alive && process->has_announced;
  };
  const auto is_done = [](const Process* process) { return process->is_alive && process->is_done; };
  is_over_ = false;
  if (ended_well_ || std::ranges::any_of(places_, is_done) ||
      std::ranges::none_of(places_, is_kept)) {
    return restart_all();
  }
  is_between_ = true;
  for (Process* const process : places_) {
    if (is_kept(process)) {
      process->inbox.push_back({.is_place = false, .generation = generation_});
    } else {
      kill(*process);
    }
  }
}

void SimulatedTraining::begin_generation() {
  is_between_ = false;
  ++generation_;
  world_size_ = wanted_world_size_;
  const std::vector<Process*> before =
      std::exchange(places_, std::vector<Process*>(static_cast<std::size_t>(world_size_)));
  for (std::size_t rank = 0; rank < before.size(); ++rank) {
    Process* const process = before[rank];
    if (process->is_alive && process->has_announced && rank < places_.size()) {
      places_[rank] = process;
    } else {
      kill(*process);
    }
  }
  std::vector<Process*> standbys = living();
  std::erase_if(standbys, [](const Process* process) {
    return !process->is_standby || !process->has_announced;
  });
  for (std::size_t rank = 0; rank < places_.size(); ++rank) {
    if (places_[rank] == nullptr && !standbys.empty()) {
      places_[rank] = standbys.back();
      places_[rank]->is_standby = false;
      standbys.pop_back();
    }
    if (places_[rank] != nullptr) {
      places_[rank]->inbox.push_back({.is_place = true,
                                      .generation = generation_,
                                      .rank = static_cast<int>(rank),
                                      .steps_made = steps_made_});
    } else {
      start(static_cast<int>(rank), /*is_standby=*/false);
    }
  }
  is_over_ = ended_well_ = false;
}

// No process has the state, or some need it no longer.
void SimulatedTraining::restart_all() {
  for (Process* const process : living()) {
    const bool has_state = process->state.held == HeldState::kWhole && process->state.is_active() &&
                           process->state.boundaries > 0;
    const bool some_done =
        std::ranges::any_of(processes_, [&](const auto& one) { return one->knows_end; });
    if (has_state && !some_done)
      fail(concat("process ", process->id, " has the state, and is stopped"));
    if (some_done) is_trained_ = true;
  }
  for (Process* const process : living()) kill(*process);
  for (const auto& process : processes_)
    process->is_done = process->ended_well = process->knows_end = false;
  ++restarts_;
  ++generation_;
  world_size_ = wanted_world_size_;
  places_.assign(static_cast<std::size_t>(world_size_), nullptr);
  for (int rank = 0; rank < world_size_; ++rank) start(rank, /*is_standby=*/false);
  is_over_ = is_between_ = ended_well_ = false;
}

bool SimulatedTraining::is_disk_newer() const {
  return disk_ && memory_ && disk_->model.steps > memory_->model.steps;
}

bool SimulatedTraining::has_ended() const {
  return gave_up_ || std::ranges::all_of(places_, [](const Process* process) {
           return !process->is_alive && process->ended_well;
         });
}

bool SimulatedTraining::run_once() {
  if (!violation_.empty() || has_ended()) return false;
  if (++ticks_ > kMostTicks) {
    fail("the job does not end");
    return false;
  }
  std::vector<Process*> ready = living();
  std::erase_if(ready, [&](const Process* process) { return !can_run(*process); });
  if (launcher_has_work()) ready.push_back(nullptr);
  if (ready.empty()) {
    fail("all wait for ever");
    return false;
  }
  Process* const next =
      ready[static_cast<std::size_t>(draw(0, static_cast<int>(ready.size()) - 1))];
  if (next == nullptr) {
    run_launcher();
  } else {
    resume(*next);
  }
  return true;
}

void SimulatedTraining::run() {
  while (run_once()) {
  }
}

bool SimulatedTraining::run_until(int rank, RecoveryAction action) {
  do {
    const auto at = static_cast<std::size_t>(rank);
    if (at < places_.size() && places_[at]->is_alive && places_[at]->state.awaited == action)
      return true;
  } while (run_once());
  return false;
}

std::string SimulatedTraining::describe() const {
  std::string text =
      concat("generation ", generation_, " of ", world_size_, " ranks, ", restarts_, " restarts\n");
  for (const Process* const process : living()) {
    text += concat("process ", process->id, ", rank ", process->rank, " of generation ",
                   process->generation, ", ", name_of(process->state.phase),
                   ", awaits: ", name_of(process->state.awaited), ", boundary ",
                   process->state.boundaries, ", epoch ", process->loader.epoch, ", batch ",
                   process->loader.batch);
    if (process->waits == Process::Waits::kForCall) {
      text +=
          concat(", waits in: ", std::string(process->waits_in->calls[process->call_number].kind));
    }
    text += "\n";
  }
  return text;
}

}  // namespace lockstep::inline internal
