#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/recovery/internal/launcher_link.h"
#include "lockstep/recovery/internal/standing.h"
#include "lockstep/recovery/internal/state_exchange.h"
#include "lockstep/recovery/internal/state_memory.h"

namespace lockstep::inline internal {

/// What StepRecovery asks of the training that it recovers.
class RecoverableTraining : public MovableState {
 public:
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
};

struct StepRecoveryOptions {
  InitOptions init = {};
  std::uint64_t seed = 0;
  int memory_every = 0;
  int check_replicas_every = 0;
};

/// Lets a program's own loop survive the death of its ranks. The program calls it at boundaries,
/// where it holds no batch; between two boundaries lies a step, or the code between two epochs.
/// A collective that fails makes the step void: the program's code goes on to the next boundary
/// with a stand-in for the group and no update happens. There the process joins the next
/// generation, takes the most advanced state of any rank, and the program repeats the step.
///
/// The states, and what leads from one to the other:
///
///   kInactive    errors are the program's own. → kTraining: activate()
///   kTraining    all ranks are at one place. → kVoid, kBroken: fail(); → kBroken: boundary(),
///                run_between(); → kEnded: boundary(kEnd); → kInactive: deactivate()
///   kVoid        the step in flight does not count. → kTraining, kFinishing: boundary()
///   kBroken      the group is lost, the step complete or none begun. → kTraining, kFinishing:
///                boundary(); → kApart: run_between(); → kVoid: make_void()
///   kCatchingUp  a new process in a job that has a state: nothing counts before its first
///                boundary. → kTraining, kFinishing: boundary(); → kArriving, kFinishing: arrive()
///   kArriving    it has the state; what the program does before its first boundary does not count.
///                → kTraining: boundary()
///   kApart       a group of the survivors that are in the same run_between(); the others wait for
///                them at a boundary. → kTraining: boundary(); → kBroken: run_between(), fail()
///   kFinishing   a new process that joined when the training was over: nothing counts before the
///                end of its loop. → kEnded: boundary(kEnd)
///   kEnded       the training is over; errors are the program's own
///
/// Threads: the training thread.
/// Lifetime: `training` must outlive it. One a process.
class StepRecovery {
 public:
  enum class State {
    kInactive,
    kTraining,
    kVoid,
    kBroken,
    kCatchingUp,
    kArriving,
    kApart,
    kFinishing,
    kEnded
  };

  StepRecovery(RecoverableTraining& training, StepRecoveryOptions options);
  ~StepRecovery();
  StepRecovery(const StepRecovery&) = delete;
  StepRecovery& operator=(const StepRecovery&) = delete;

  /// Whether the launcher replaces workers of this program, and no other object of this process
  /// has its link.
  static bool is_offered();

  /// Joins the job and returns the default group: in kCatchingUp a stand-in.
  /// Errors: as init_process_group.
  ProcessGroup join();
  /// From kInactive: the training is one that can be recovered.
  void activate();
  /// Where it is not: errors are the program's own from now on.
  void deactivate();

  State state() const { return state_; }
  /// Nothing that the program does counts before the next boundary.
  bool is_void() const {
    return state_ == State::kVoid || state_ == State::kCatchingUp || state_ == State::kArriving ||
           state_ == State::kFinishing;
  }
  /// Collectives of the program would reach nobody.
  bool has_lost_group() const { return is_void() || state_ == State::kBroken; }
  /// Whether this process writes and prints for the job.
  bool is_main() const;
  /// The training is over; what the program still does in loops does not count.
  bool is_finishing() const { return state_ == State::kFinishing; }
  /// This process's rank and world size in the job, also where a stand-in is in use.
  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  std::int64_t recoveries() const { return recoveries_; }

  /// The program begins a step with updates of the parameters; it ends with the next boundary.
  void begin_step() { in_step_ = true; }
  bool is_in_step() const { return in_step_; }
  /// The updates of the step are complete, or there are none any more.
  void set_step_complete(bool complete) { step_complete_ = complete; }

  /// A collective of the program has failed. True: the program's code goes on, with harmless
  /// values. False: the error is the program's.
  bool fail(const Error& error);

  enum class Boundary { kStep, kEpochEnd, kEnd };
  /// The program holds no batch. Where ranks are lost, returns when all are together again at a
  /// boundary; `training` has set_group() called then, and goes on where its state says.
  /// Errors: what the launcher's end and the loss of all states lead to.
  void boundary(Boundary kind);
  /// In kCatchingUp, before the program's first boundary, where it must know how far the training
  /// is: takes the state. Errors: as boundary().
  void arrive();
  /// The step, whose updates seemed to be complete, has more: it does not count.
  void make_void() {
    if (state_ == State::kBroken) state_ = State::kVoid;
  }

  /// Called while the process waits for its place in a generation: what it throws ends that.
  void set_while_waiting(std::function<void()> while_waiting) {
    while_waiting_ = std::move(while_waiting);
  }

  /// Runs `action`, collectives between steps, to its end on all ranks: again where a rank is lost
  /// meanwhile, with the ranks that are left. False, without running it: nothing counts here.
  /// Errors: what `action` throws.
  bool run_between(const std::function<void()>& action);

 private:
  struct Place;
  void give_up_group(const Error& why);
  void leave_generation(const Error& why);
  void announce_state();
  ProcessGroup init();
  static std::vector<int> ranks_between(const std::vector<Place>& places);
  void recover(bool at_boundary);
  bool settle(bool at_boundary);
  std::vector<Place> gather_places(bool is_new, bool at_boundary) const;
  void use_group(const ProcessGroup& group, bool at_boundary);
  void agree_on_state();
  void commit();
  void end();
  void check_and_keep();
  void begin_interval();
  Standing standing() const;
  void read_place();

  RecoverableTraining& training_;
  const StepRecoveryOptions options_;
  LauncherLink link_;
  StateMemory memory_;
  State state_ = State::kInactive;
  bool keeps_state_ = false;  ///< the launcher knows
  ProcessGroup all_;          ///< of all ranks
  ProcessGroup apart_;        ///< in kApart
  std::function<void()> while_waiting_ = [] {};
  int rank_ = 0;
  int world_size_ = 1;
  std::int64_t recoveries_ = 0;
  std::int64_t boundaries_ = 0;        ///< passed, by the training
  std::int64_t passed_ = 0;            ///< calls of run_between() since the last of them
  bool first_barrier_passed_ = false;  ///< of the call under way
  bool in_between_ = false;
  std::int64_t generation_ = 0;  ///< which passed the last boundary
  bool in_step_ = false;
  bool step_complete_ = true;
  bool is_whole_ = false;
  bool is_ending_ = false;
  bool is_over_ = false;
  std::int64_t checked_at_ = 0;  ///< steps, when copies and comparisons were last due
  bool is_main_apart_ = false;   ///< in kApart
  /// A collective in the tail of the complete step gave this rank's own values: another rank's
  /// state counts.
  bool is_tainted_ = false;
  bool check_soon_ = false;  ///< replicas, after a recovery
  std::chrono::steady_clock::time_point asks_at_{};
  const int exceptions_ = std::uncaught_exceptions();
  const std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

}  // namespace lockstep::inline internal
