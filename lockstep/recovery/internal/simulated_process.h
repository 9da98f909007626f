#pragma once

#include <algorithm>
#include <coroutine>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/recovery/internal/simulated_training.h"

// The processes of a SimulatedTraining: simulated_recovery.cpp carries out the machine's actions in
// them, simulated_program.cpp is the program that they run.

namespace lockstep::inline internal {

inline std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15ULL + (hash << 6U) + (hash >> 2U);
  return hash * 0xff51afd7ed558ccdULL;
}

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
  int version = 0;         ///< of the copies of its shards

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
    state.keeps_shards = job.options_.keeps_shards;
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
  SimulatedTask<RecoveryAction> carry_out(RecoveryEvent event, const Section* section = nullptr);
  SimulatedTask<RecoveryEvent> perform(RecoveryAction action, const Section* section);
  Task gather_reports();
  Task exchange_state();
  Task does_step_count();
  Task begin_shards();
  Task keep_shards();
  bool settle_shards();
  void check_shards();
  Task save_snapshot();
  SimulatedTask<RecoveryEvent> load_snapshot();
  void take_state();
  void check_counted_steps();
  bool roll_back();
  void remember();
  void leave_groups();
  void take_rank();
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
  int counted_steps = 0;  ///< at the last step of which it knew that it counts
  Cursor remembered_cursor{};
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

}  // namespace lockstep::inline internal
