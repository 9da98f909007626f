#include "lockstep/recovery/internal/simulated_training.h"

#include <algorithm>
#include <cstdio>

#include "lockstep/base/internal/concat.h"
#include "lockstep/recovery/internal/simulated_process.h"

namespace lockstep::inline internal {
namespace {

using Phase = RecoveryPhase;

// More than any job of these sizes takes.
constexpr std::uint64_t kMostTicks = 200'000;

}  // namespace

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
  const bool is_kept = memory_ && memory_->standing.is_end && memory_->model.hash == model.hash;
  if (!is_kept && !options_.keeps_shards)
    fail("there is no copy of the end in memory");
  const int every = options_.snapshot_every;
  if (was_disturbed_ || !options_.owns_loop || every == 0 || model.steps < every) return;
  if (steps_on_disk_ != model.steps / every * every) fail("there is no snapshot");
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

// The first is whole: else programs would end with an error.
void SimulatedTraining::write_to_disk(Snapshot snapshot) {
  steps_on_disk_ = snapshot.model.steps;
  if (written_++ % options_.whole_every == 0)
    disk_ = std::make_shared<Snapshot>(std::move(snapshot));
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
    fail("all wait forever");
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
