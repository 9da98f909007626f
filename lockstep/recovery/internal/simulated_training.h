#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/recovery/internal/simulated_task.h"
#include "lockstep/recovery/internal/step_machine.h"

// A job whose ranks run a training loop over the recovery's state machine, for tests: the machine
// as it is, and around it simulated processes, collectives and a launcher.

namespace lockstep::inline internal {

struct SimulatedTrainingOptions {
  std::uint64_t seed = 0;
  int ranks = 3;
  int standby_workers = 0;
  int epochs = 2;
  int batches = 4;       ///< of an epoch
  int accumulation = 1;  ///< batches of a step
  int optimizers = 1;    ///< each exchanges gradients and updates once in a step
  bool exchanges_buffers = false;
  bool evaluates_in_step = false;
  bool ends_in_loop = false;  ///< the program leaves the last epoch's loop behind its last step
  bool gathers_in_tail = false;
  int evaluate_every = 0;  ///< steps, in the loop; 0: never
  bool evaluates_epochs = true;
  int save_every = 0;  ///< steps; 0: never
  /// In these steps an optimizer updates once more behind the evaluation; 0: never.
  int extra_update_every = 0;
  int memory_every = 0;
  int check_replicas_every = 0;
  /// The recovery's own loop, whose step has one batch and one optimizer.
  bool owns_loop = false;
  int snapshot_every = 0;  ///< steps; 0: never. Of an own loop
  /// Each rank has a shard of the model, of which it leaves copies. With one optimizer, no copies
  /// in memory and a loop of the program's.
  bool keeps_shards = false;
  /// Behind the updates the program asks whether the step counts; if not, it has no tail.
  bool completes_steps = false;
  bool traces = false;  ///< each action is printed
  int whole_every = 1;  ///< of so many snapshots one is not damaged
};

enum class SimulatedFault {
  kKill,
  kKillTwo,
  kCollectiveFails,  ///< on one rank alone
  kProgramThrows,
  kResize,
};

/// Counts how often each action was carried out in each phase.
using RecoveryCoverage =
    std::array<std::array<std::uint64_t, static_cast<std::size_t>(RecoveryAction::kBarrier) + 1>,
               static_cast<std::size_t>(RecoveryPhase::kEnded) + 1>;

class SimulatedTraining {
 public:
  explicit SimulatedTraining(const SimulatedTrainingOptions& options,
                             RecoveryCoverage* coverage = nullptr);
  ~SimulatedTraining();
  SimulatedTraining(const SimulatedTraining&) = delete;
  SimulatedTraining& operator=(const SimulatedTraining&) = delete;

  int draw(int least, int most);
  void inject(SimulatedFault fault);
  /// Kills the process of a rank.
  void kill_rank(int rank);
  /// One process or the launcher does one thing. False: the job has ended, or something is wrong.
  bool run_once();
  /// Runs to the end.
  void run();
  /// Runs until the process of a rank is about to carry the action out. False: it never is.
  bool run_until(int rank, RecoveryAction action);

  /// What should not have been; empty: nothing.
  const std::string& violation() const { return violation_; }
  /// So often all ranks began anew, as no process had the state.
  int restarts() const { return restarts_; }
  /// Where each process is.
  std::string describe() const;

 private:
  using Row = std::vector<std::int64_t>;
  using Task = SimulatedTask<bool>;
  using Section = std::function<Task()>;
  struct GroupIsLost;
  struct ProgramError;
  struct Model;
  struct Cursor;
  struct Snapshot;
  struct Process;
  struct Group;
  enum class LoaderVisit;
  friend struct Process;

  void fail(const std::string& what);
  void trace(const Process& process, const std::string& what) const;
  Process& start(int rank, bool is_standby);
  void end(Process& process, bool failed);
  void kill(Process& process);
  std::vector<Process*> living() const;
  bool launcher_has_work() const;
  void run_launcher();
  void end_generation();
  void begin_generation();
  void restart_all();
  bool waits_for_ended_rank() const;
  bool can_run(const Process& process) const;
  void resume(Process& process);
  void write_to_disk(Snapshot snapshot);
  bool is_disk_newer() const;
  bool has_ended() const;
  void expect_end(const Process& process);
  void check_furthest(const Process& process);
  void check_same(const Process& process, const char* what, const Row& own,
                  const std::vector<Row>& all);
  void plan_expectations();

  const SimulatedTrainingOptions options_;
  std::mt19937_64 random_;
  RecoveryCoverage* const coverage_;
  std::vector<std::unique_ptr<Process>> processes_;
  /// Of all ranks, by generation.
  std::map<std::uint64_t, std::shared_ptr<Group>> groups_;
  std::vector<Process*> places_;  ///< by rank
  std::string violation_;
  std::uint64_t ticks_ = 0;
  int restarts_ = 0;

  // Of the launcher.
  std::uint64_t generation_ = 0;
  int world_size_ = 0;
  int wanted_world_size_ = 0;
  bool is_over_ = false;  ///< the generation
  bool is_between_ = false;
  bool ended_well_ = false;      ///< a worker of this generation
  bool gave_up_ = false;         ///< as a worker asked for it
  std::int64_t steps_made_ = 0;  ///< by processes that have ended

  /// Copies of shards, which processes of any generation write and read.
  struct KeptShards {
    struct Shard {
      int version = 0;  ///< 0: none
      std::size_t ranks = 0;
      std::uint64_t hash = 0;
      bool operator==(const Shard&) const = default;
    };
    std::map<std::size_t, Shard> shards{};  ///< by rank
    bool is_complete(int version) const;
  };
  std::array<KeptShards, 3> kept_shards_{};
  KeptShards* find_shards(int version);
  KeptShards& free_shards(int version, int other);

  /// What outlives processes.
  std::shared_ptr<const Snapshot> memory_;
  std::shared_ptr<const Snapshot> disk_;  ///< the newest that is not damaged
  int steps_on_disk_ = 0;                 ///< of the newest
  int written_ = 0;                       ///< snapshots
  std::set<std::string> lines_;
  bool took_uncertain_ = false;
  bool may_lack_lines_ = false;
  int most_steps_ = 0;  ///< at any boundary that was passed
  bool was_disturbed_ = false;
  bool was_killed_ = false;  ///< a process
  bool is_trained_ = false;  ///< all ranks were once at the training's end
  /// Of the undisturbed training.
  std::uint64_t final_hash_ = 0;
  int final_evaluations_ = 0;
  std::uint64_t final_tail_ = 0;
};

}  // namespace lockstep::inline internal
