#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/one_copy/internal/kept_memory.h"
#include "lockstep/recovery/internal/launcher_link.h"
#include "lockstep/recovery/internal/state_exchange.h"
#include "lockstep/recovery/internal/state_memory.h"
#include "lockstep/recovery/internal/step_machine.h"

namespace lockstep::inline internal {

/// StepRecovery's interface to the training that it recovers.
class RecoverableTraining : public MovableState {
 public:
  /// All parameters of the model or models; equal on all ranks.
  virtual std::vector<at::Tensor> parameters() = 0;
  /// Number of updates of the parameters in a value().
  virtual std::int64_t steps_of(const c10::IValue& value) const = 0;
  /// Records the state that a discarded step is rolled back to. At a boundary.
  virtual void remember() = 0;
  /// Rolls back to the last remember(). Returns false if parameters have changed since outside a
  /// step.
  virtual bool roll_back() = 0;
  /// Releases everything that uses the group, which has failed; `group` is its stand-in.
  virtual void drop_group(const ProcessGroup& group) = 0;
  /// Everything uses `group` from now on. Collective in it. `at_boundary`: training continues from
  /// its state; else the program is in code between two steps.
  virtual void set_group(const ProcessGroup& group, bool at_boundary) = 0;
  /// With StepRecoveryOptions::keeps_shards: leaves a copy of this rank's shard where the others
  /// can read it, and returns when all ranks have. Collective.
  virtual void keep_shards() {}
  /// Whether the program has changed its shard since keep_shards(); the same on all ranks.
  virtual bool has_new_shards() const { return false; }
  /// After keep_shards() has failed: whether all ranks have left their copies all the same; then
  /// the state is that of the copies.
  virtual bool settle_shards() { return false; }
  /// Number of updates of the parameters so far.
  virtual std::int64_t steps() const = 0;
  /// A number of the boundary, different for each, and equal in a run that is resumed from a
  /// snapshot.
  virtual std::int64_t place() const = 0;

  /// Steps of the newest snapshot that load_snapshot() would consider; -1: none.
  virtual std::int64_t newest_snapshot(const ProcessGroup& /*group*/) { return -1; }
  /// Replaces the state by that of the newest complete snapshot, and returns its steps; -1: there
  /// is none. Collective.
  /// Errors: CorruptFile if there are snapshots and none is complete, unless `has_memory`: there is
  /// another source.
  virtual std::int64_t load_snapshot(const ProcessGroup& /*group*/, bool /*has_memory*/) {
    return -1;
  }
  /// Collective.
  virtual void save_snapshot(const ProcessGroup& /*group*/) {}
};

/// Options of StepRecovery.
struct StepRecoveryOptions {
  InitOptions init = {};
  std::uint64_t seed = 0;
  int memory_every = 0;
  int check_replicas_every = 0;
  /// Number of steps from one save_snapshot() to the next; 0: none.
  int save_every = 0;
  /// Each rank has a shard of the state: value() is what all have, and keep_shards() is called.
  bool keeps_shards = false;
};

/// Recovers a training loop when ranks fail. The loop calls it at boundaries; between two of them
/// is a step, or the code between two epochs. step_machine.h makes the decisions.
///
/// A program's own loop: join(), activate(), boundary(). When a collective fails, the program
/// continues to the next boundary with a stand-in for the group, and the step in flight is
/// discarded. There the process joins the next generation, takes the most advanced state of any
/// rank, and the program repeats the step.
///
/// A loop that repeats a step that throws: begin(), recover(), boundary(). From the first boundary
/// on any rank's state is that of all, and the process is at that boundary again when recover()
/// returns.
/// Threads: the training thread.
/// Lifetime: `training` must outlive it. One per process.
class StepRecovery {
 public:
  StepRecovery(RecoverableTraining& training, StepRecoveryOptions options);
  ~StepRecovery();
  StepRecovery(const StepRecovery&) = delete;
  StepRecovery& operator=(const StepRecovery&) = delete;

  /// Whether the launcher replaces workers of this program, and no other object of this process
  /// has its link.
  static bool is_offered();

  /// Joins the job and returns the default group; a stand-in in a process that joins a running
  /// training.
  /// Errors: as init_process_group.
  ProcessGroup join();
  /// Joins the job in a loop that repeats steps. When it returns, all ranks are at a boundary, or
  /// training is complete (RecoveryPhase::kEnded).
  /// Errors: as boundary().
  void begin();
  /// From RecoveryPhase::kInactive: training can be recovered from now on.
  void activate();
  /// Training cannot be recovered: errors are the program's own from now on.
  void deactivate();

  RecoveryPhase phase() const { return state_.phase; }
  /// See RecoveryState.
  bool is_discarding() const { return state_.is_discarding(); }
  bool has_lost_group() const { return state_.has_lost_group(); }
  bool is_active() const { return state_.is_active(); }
  /// Training is complete; what the program still does in loops is discarded.
  bool is_finishing() const { return state_.phase == RecoveryPhase::kFinishing; }
  /// Whether this process writes and prints for the job.
  bool is_main() const { return state_.is_main; }
  /// This process's rank and world size in the job, also while a stand-in is used.
  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  std::int64_t recoveries() const { return state_.recoveries; }
  /// This process has the whole state of the last boundary, or between two boundaries of the last
  /// step.
  bool holds_state() const { return state_.held == HeldState::kWhole; }
  /// Whether a running recovery began at a boundary.
  bool is_at_boundary() const { return state_.is_at_boundary; }

  /// The program begins a step with updates of the parameters; the next boundary ends it.
  void begin_step() { state_.progress = StepProgress::kOpen; }
  bool is_in_step() const { return state_.progress != StepProgress::kNone; }
  /// Whether the updates of the current step are complete.
  void set_step_complete(bool complete) {
    if (is_in_step()) state_.progress = complete ? StepProgress::kComplete : StepProgress::kOpen;
  }
  /// The program has made the updates of the step, and must know whether it counts. False: it is
  /// discarded. With keeps_shards collective: ranks leave their copies.
  bool complete_step() { return carry_out(called::CompleteStep{}) == RecoveryAction::kReturn; }

  /// A collective of the program has failed; call it in the catch block. True: the program
  /// continues, with harmless values. False: the error is the program's.
  bool fail(const Error& error);
  /// Code since the last boundary has thrown, in a loop that repeats it; call it in the catch
  /// block. True: this process and all others are at that boundary or a later one, as after
  /// boundary(). False: the error is the program's.
  /// Errors: as boundary().
  bool recover(const Error& error);
  /// A collective of a step has succeeded.
  void note_collective() { state_.note_collective(); }

  /// The program is at a boundary and holds no batch. If ranks are lost, it returns when all are at
  /// a boundary again; then `training` has its set_group() called and continues from its state. If
  /// the step in flight is discarded at the training's end, training continues:
  /// RecoveryPhase::kReceived.
  /// Errors: those of a lost launcher and of a lost state.
  void boundary(BoundaryKind kind);
  /// The process ends before the training's end because it was preempted: with all ranks, or
  /// without the others. `while_waiting` may call it and then throw.
  void leave();
  using NewestSnapshot = std::function<std::int64_t(bool is_complete)>;
  /// In a process that joins, before the program's first boundary, where the program must know how
  /// far training is: takes the state. `newest_snapshot` returns the steps of the newest snapshot
  /// that the program would load here (`is_complete`: the newest complete one); -1: none. It is
  /// called in each meeting of the ranks, because a standby worker waits long. If no rank has a
  /// state and all would load a snapshot newer than the copies in memory, they do:
  /// RecoveryPhase::kInactive.
  /// Errors: as boundary().
  void arrive(const NewestSnapshot& newest_snapshot = {});
  /// Call it before an update: if ranks are lost and the updates of the step seemed to be complete,
  /// the step is discarded.
  void expect_update() {
    if (state_.phase == RecoveryPhase::kGroupLost || state_.phase == RecoveryPhase::kSurvivors)
      carry_out(called::MoreUpdates{});
  }

  /// Whether the job goes on with fewer ranks and without this process.
  bool is_removed() { return link_.is_removed(); }
  /// Called while the process waits for its rank in a generation, and then for the other ranks; an
  /// exception from it ends the wait.
  void set_while_waiting(std::function<void()> while_waiting) {
    while_waiting_ = std::move(while_waiting);
  }

  /// Runs `action`, collectives between steps, to its end on all ranks; if a rank is lost
  /// meanwhile, again with the remaining ranks. Returns false without running it if everything here
  /// is discarded.
  /// Errors: what `action` throws.
  bool run_on_survivors(const std::function<void()>& action);

 private:
  using Section = std::function<void()>;
  void join(bool owns_loop);
  RecoveryAction carry_out(const RecoveryEvent& event, const Section& section = {});
  RecoveryEvent attempt(RecoveryAction action, const Section& section);
  RecoveryEvent perform(RecoveryAction action, const Section& section);
  ProcessGroup init();
  void leave_group();
  void go_on_alone();
  void take_rank();
  void use_group(const ProcessGroup& group, bool at_boundary);
  std::vector<RankReport> gather_reports();
  void exchange_state();
  std::int64_t load_snapshot();
  bool is_snapshot_newer();
  void take_state();
  void begin_interval();
  void check_generation();
  RecoveryEvent compare_replicas();
  void announce_end();

  RecoverableTraining& training_;
  const StepRecoveryOptions options_;
  LauncherLink link_;
  StateMemory memory_;
  std::optional<Standing> memory_standing_;  ///< once it was hashed
  RecoveryState state_;
  ProcessGroup all_;        ///< of all ranks
  ProcessGroup survivors_;  ///< that finish a section
  std::function<void()> while_waiting_ = [] {};
  int rank_ = 0;
  int world_size_ = 1;
  std::exception_ptr lost_because_;  ///< why the group is lost
  std::vector<RankReport> reports_;
  NewestSnapshot newest_snapshot_;  ///< of an arrive() under way
  c10::IValue received_;            ///< a state, until it is taken
  std::optional<KeptMemory> kept_;  ///< with it: memory in which a part of it lies
  std::chrono::steady_clock::time_point checks_at_{};
  const int exceptions_ = std::uncaught_exceptions();
  const std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

}  // namespace lockstep::inline internal
