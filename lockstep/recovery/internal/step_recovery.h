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

/// What StepRecovery asks of the training that it recovers.
class RecoverableTraining : public MovableState {
 public:
  /// All of the model's, or models'; the same on all ranks.
  virtual std::vector<at::Tensor> parameters() = 0;
  /// Updates of the parameters that a value() has behind it.
  virtual std::int64_t steps_of(const c10::IValue& value) const = 0;
  /// At a boundary: what a void step goes back to.
  virtual void remember() = 0;
  /// Back to the last remember(). False where parameters have changed since and are of no step.
  virtual bool go_back() = 0;
  /// Lets go of all that uses the group, which has ended; `group` stands in for it.
  virtual void drop_group(const ProcessGroup& group) = 0;
  /// Everything uses `group` from now on. Collective in it. `at_boundary`: the training goes on
  /// from its state; otherwise the program is in code between two steps.
  virtual void set_group(const ProcessGroup& group, bool at_boundary) = 0;
  /// Updates of the parameters so far.
  virtual std::int64_t steps() const = 0;
  /// A number of the boundary, another one for each: the same in a run that is resumed from a
  /// snapshot.
  virtual std::int64_t place() const = 0;

  /// Steps of the newest snapshot that load_snapshot() would look at; -1: there is none.
  virtual std::int64_t newest_snapshot(const ProcessGroup& /*group*/) { return -1; }
  /// Collective: replaces the state by that of the newest snapshot that is complete, and returns
  /// its steps; -1: there is none. Errors: CorruptFile where snapshots are there and none is
  /// complete, unless `has_memory`: there is another source.
  virtual std::int64_t load_snapshot(const ProcessGroup& /*group*/, bool /*has_memory*/) {
    return -1;
  }
  /// Collective.
  virtual void save_snapshot(const ProcessGroup& /*group*/) {}
};

struct StepRecoveryOptions {
  InitOptions init = {};
  std::uint64_t seed = 0;
  int memory_every = 0;
  int check_replicas_every = 0;
  /// Steps from one save_snapshot() to the next; 0: none.
  int save_every = 0;
};

/// Lets a training loop survive the death of its ranks. The loop calls it at boundaries; between
/// two of them lies a step, or the code between two epochs. The decisions are those of
/// step_machine.h.
///
/// A program's own loop: join(), activate(), boundary(). When a collective fails, the program's
/// code goes on to the next boundary, where it holds no batch, with a stand-in for the group, and
/// nothing of the step in flight counts. There the process joins the next generation, takes the
/// most advanced state of any rank, and the program repeats the step.
///
/// A loop that repeats a step which throws: begin(), recover(), boundary(). Any rank's state is
/// that of all from the first boundary on, and the process is there again when recover() returns.
/// Threads: the training thread.
/// Lifetime: `training` must outlive it. One a process.
class StepRecovery {
 public:
  StepRecovery(RecoverableTraining& training, StepRecoveryOptions options);
  ~StepRecovery();
  StepRecovery(const StepRecovery&) = delete;
  StepRecovery& operator=(const StepRecovery&) = delete;

  /// Whether the launcher replaces workers of this program, and no other object of this process
  /// has its link.
  static bool is_offered();

  /// Joins the job and returns the default group: in a process that joins a training a stand-in.
  /// Errors: as init_process_group.
  ProcessGroup join();
  /// Joins the job in a loop that repeats steps. As boundary(): all ranks are together when it
  /// returns, or the training is over already (RecoveryPhase::kEnded). Errors: as boundary().
  void begin();
  /// From RecoveryPhase::kInactive: the training is one that can be recovered.
  void activate();
  /// Where it is not: errors are the program's own from now on.
  void deactivate();

  RecoveryPhase phase() const { return state_.phase; }
  /// As RecoveryState.
  bool is_discarding() const { return state_.is_discarding(); }
  bool has_lost_group() const { return state_.has_lost_group(); }
  bool is_active() const { return state_.is_active(); }
  /// The training is over; what the program still does in loops does not count.
  bool is_finishing() const { return state_.phase == RecoveryPhase::kFinishing; }
  /// Whether this process writes and prints for the job.
  bool is_main() const { return state_.is_main; }
  /// This process's rank and world size in the job, also where a stand-in is in use.
  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  std::int64_t recoveries() const { return state_.recoveries; }
  /// This process has all of the state of the last boundary, or between two of the last step.
  bool holds_state() const { return state_.held == HeldState::kWhole; }
  /// A recovery that is under way began at a boundary.
  bool is_at_boundary() const { return state_.is_at_boundary; }

  /// The program begins a step with updates of the parameters; it ends with the next boundary.
  void begin_step() { state_.progress = StepProgress::kOpen; }
  bool is_in_step() const { return state_.progress != StepProgress::kNone; }
  /// Whether the updates of the step under way are complete.
  void set_step_complete(bool complete) {
    if (is_in_step()) state_.progress = complete ? StepProgress::kComplete : StepProgress::kOpen;
  }

  /// A collective of the program has failed; called where `error` is caught. True: the program's
  /// code goes on, with harmless values. False: the error is the program's.
  bool fail(const Error& error);
  /// Code since the last boundary has thrown, in a loop that repeats it; called where `error` is
  /// caught. True: this process is at that boundary or a later one, together with the others, as
  /// after boundary(). False: the error is the program's. Errors: as boundary().
  bool recover(const Error& error);
  /// One of a step has succeeded.
  void note_collective() { state_.note_collective(); }

  /// The program holds no batch. Where ranks are lost, returns when all are together again at a
  /// boundary; `training` has set_group() called then, and goes on where its state says. At the
  /// training's end, where the step in flight does not count, the training goes on:
  /// RecoveryPhase::kReceived.
  /// Errors: what the launcher's end and the loss of all states lead to.
  void boundary(BoundaryKind kind);
  /// The process ends before the training's end, as it was preempted: with all ranks, or without
  /// the others. Also called by `while_waiting`, which then throws.
  void leave();
  /// In a process that joins, before the program's first boundary, where it must know how far the
  /// training is: takes the state. `newest_snapshot` returns the steps of the newest snapshot that
  /// it would load here, if `is_complete` of the newest that is complete; -1: there is none. Called
  /// whenever ranks meet, as a standby worker waits long. Where no rank has a state and all would
  /// load one that is newer than the copies in memory, they do: RecoveryPhase::kInactive.
  /// Errors: as boundary().
  using NewestSnapshot = std::function<std::int64_t(bool is_complete)>;
  void arrive(const NewestSnapshot& newest_snapshot = {});
  /// Before an update: where ranks are lost, and the updates of the step seemed to be complete, the
  /// step does not count.
  void expect_update() {
    if (state_.phase == RecoveryPhase::kGroupLost || state_.phase == RecoveryPhase::kSurvivors)
      carry_out(called::MoreUpdates{});
  }

  /// Called while the process waits for its place in a generation, and there for the other ranks:
  /// what it throws ends that.
  void set_while_waiting(std::function<void()> while_waiting) {
    while_waiting_ = std::move(while_waiting);
  }

  /// Runs `action`, collectives between steps, to its end on all ranks: again where a rank is lost
  /// meanwhile, with the ranks that are left. False, without running it: nothing counts here.
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
  void take_place();
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
