#pragma once

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "lockstep/recovery/internal/standing.h"

// The recovery of a training loop as a state machine, without group, thread and system call.
// StepRecovery turns calls of the program into events, executes the actions, one at a time, and
// passes the outcome of each as the next event. recovery_simulation_test.cpp runs it on many ranks.

namespace lockstep::inline internal {

/// What the recovery does with errors and results of the program. A program's own loop calls at its
/// boundaries, and what it does in between never throws. A loop that the recovery owns
/// (`owns_loop`) joins at a boundary; a step that fails throws, and the rank is at the last
/// boundary again. Such a loop has only the phases kTraining and kEnded, and in a recovery
/// kDiscarding and kGroupLost.
///
///     kInactive    errors are the program's own. → kTraining: Activate
///     kTraining    all ranks are at one place. → kDiscarding, kGroupLost: CollectiveFailed;
///                  → kGroupLost: Boundary, RunOnSurvivors; → kDiscarding, kGroupLost: these and
///                  CompleteStep, where it leaves copies of shards; → kDiscarding or kGroupLost,
///                  and within the call → kTraining, kEnded: StepFailed; → kEnded: Boundary at the
///                  training's end, Leave; → kInactive: Deactivate
///     kDiscarding  the step in flight is discarded. → kTraining, kFinishing: Boundary
///     kGroupLost   the group is lost, the step complete or none begun. → kTraining, kFinishing:
///                  Boundary; → kSurvivors: RunOnSurvivors; → kDiscarding: MoreUpdates, and
///                  Boundary or RunOnSurvivors with new shards
///     kJoining     a new process in a job that has a state: everything before its first boundary
///                  is discarded. → kTraining, kFinishing: Boundary; → kReceived, kFinishing:
///                  Arrive; → kInactive: Arrive, if all ranks will load a newer snapshot
///     kReceived    it has the state; what the program does before its first boundary is
///                  discarded. → kTraining: Boundary
///     kSurvivors   in a group of the survivors that are in the same section; the others wait for
///                  them at a boundary. → kTraining: Boundary; → kGroupLost: RunOnSurvivors,
///                  CollectiveFailed; → kDiscarding: MoreUpdates, and Boundary or RunOnSurvivors
///                  with new shards
///     kFinishing   a new process that joined after the end of training: everything before the end
///                  of its loop is discarded. → kEnded: Boundary at the training's end
///     kEnded       training is complete; errors are the program's own. ← any: Leave
///
/// At the training's end a rank whose last step is discarded is in kReceived: it continues.
enum class RecoveryPhase {
  kInactive,
  kTraining,
  kDiscarding,
  kGroupLost,
  kJoining,
  kReceived,
  kSurvivors,
  kFinishing,
  kEnded,
};
const char* name_of(RecoveryPhase phase);

/// Progress of the step since the last boundary.
enum class StepProgress {
  kNone,      ///< no step has begun
  kOpen,      ///< updates of the step are to come
  kComplete,  ///< all its updates are made
  kKept,      ///< and all ranks have left copies of their shards: it counts
};

/// What this rank has for a rank that needs the state of the last boundary.
enum class HeldState {
  kNone,       ///< nothing, or an incomplete state
  kWhole,      ///< the state
  kUncertain,  ///< a collective at the end of a complete step had the values of only some ranks:
               ///< another rank's state is used
};

/// A section is code between steps with collectives, which runs to its end on all ranks. It ends
/// with two barriers: a rank that fails in the second knows that all have the section's results.
enum class SectionProgress {
  kNone,
  kRunning,
  kComplete,  ///< the first barrier is passed
};

enum class BoundaryKind { kStep, kEpochEnd, kTrainingEnd };

/// The current call of the program.
enum class RecoveryCall { kNone, kJoin, kBoundary, kArrive, kRunOnSurvivors, kCompleteStep };

/// What the current call does now.
enum class RecoveryStage {
  kProgram,     ///< nothing: the program's own code runs
  kKeeping,     ///< behind the updates of a step: leaves copies of shards
  kCommitting,  ///< at a boundary, with all ranks at one place
  kMeeting,     ///< joins the ranks of the next generation, until all agree on a state
  kSection,     ///< a section is under way
  kEnding,      ///< at the training's end: its copy, before the first barrier
  kAllEnded,    ///< before the second: all ranks are at the end
};

/// The next action. Its outcome is Done unless noted.
enum class RecoveryAction {
  // The call ends.
  kReturn,
  kDecline,    ///< CollectiveFailed: the error is the program's. RunOnSurvivors: it does not
               ///< run, because the step is discarded. CompleteStep: it is discarded
  kRunAlone,   ///< RunOnSurvivors: it runs once, its errors are the caller's
  kRunInStep,  ///< RunOnSurvivors: it runs once; an error is one of a collective of the step
  kFailPositionsDiffer,  ///< an error: the ranks are at different places of the program
  kFailStateLost,        ///< an error: no rank holds a state; all ranks may start over
  kGiveUp,               ///< an error: no rank holds a state, and steps were made: no rank starts
                         ///< over

  // Alone.
  kAnnounceState,  ///< the launcher keeps this process when its generation ends
  kAnnounceEnd,    ///< and no longer
  kLeaveGroup,     ///< leaves the group of all, which this process has lost, and continues alone
  kGoOnAlone,      ///< continues alone; keeps the group of all
  kTakePlace,      ///< waits for a rank. Outcome: PlaceTaken
  kRollBack,       ///< to the last boundary. Outcome: RolledBack
  kRemember,       ///< records what it rolls back to
  kBeginInterval,  ///< kRemember, and random numbers are seeded
  kTakeState,      ///< takes the received state

  // Collective in the group of all, for which a rank waits: the outcome may be GroupLost.
  kFormGroup,      ///< of all
  kGatherReports,  ///< Outcome: ReportsGathered
  kFormSurvivors,  ///< a group of `survivors`
  kExchangeState,  ///< of `source`: sent or received
  kLoadSnapshot,   ///< the newest that is complete. Outcome: SnapshotLoaded
  /// The newest that is complete and the copy in memory of `source`. Outcome: SnapshotCompared
  kCompareSnapshot,
  kJoinAll,  ///< the training uses the group of all. Outcome: Joined
  /// Leaves a copy of this rank's shard where others can read it, and waits until all have.
  kKeepShards,
  kCompareReplicas,
  kKeepCopy,
  kSaveSnapshot,
  kCheckGeneration,
  kAwaitVerdict,  ///< waits for a moment whether the launcher ends the generation: GroupLost

  // Collective in the group in use: the outcome may be GroupLost.
  kJoinSurvivors,  ///< the program uses the group of survivors
  kRunSection,
  kBarrier,
};
const char* name_of(RecoveryAction action);

/// What a rank reports when ranks join a generation.
struct RankReport {
  bool is_new = false;  ///< it has just joined the job
  bool is_at_boundary = false;
  bool is_discarding = false;
  std::int64_t boundaries = 0;  ///< passed by its training
  std::int64_t sections = 0;    ///< complete since the last of them
  HeldState held = HeldState::kNone;
  Standing state{};  ///< that it holds
  /// If it holds none: its machine's copy in memory, on the machine's first rank.
  Standing memory{};
  /// If it holds none: steps of the newest snapshot that the recovery can load; -1: none.
  std::int64_t snapshot_steps = -1;
  /// The program is about to load a snapshot, and there is one, complete or not.
  bool loads_snapshot = false;
  /// Boundaries that training is known to have passed; -1: unknown.
  std::int64_t known_boundaries = -1;
};

/// State of the recovery on one rank.
struct RecoveryState {
  int memory_every = 0;          ///< steps; 0: never
  int check_replicas_every = 0;  ///< steps; 0: never
  int save_every = 0;            ///< steps from one snapshot to the next; 0: none
  /// Each rank has a shard of the state. Others can read a copy of it, which it leaves after each
  /// step, at the boundary, or before it at CompleteStep or RunOnSurvivors: the step counts when
  /// all ranks have left theirs.
  bool keeps_shards = false;
  /// The recovery owns the loop: each of its boundaries ends one step, except the training's end.
  bool owns_loop = false;

  RecoveryPhase phase = RecoveryPhase::kInactive;
  StepProgress progress = StepProgress::kNone;
  HeldState held = HeldState::kNone;
  RecoveryCall call = RecoveryCall::kNone;
  RecoveryStage stage = RecoveryStage::kProgram;
  BoundaryKind boundary = BoundaryKind::kStep;  ///< of the call under way
  SectionProgress section = SectionProgress::kNone;
  /// All ranks had its results once: an earlier main rank may have printed them.
  bool section_had_results = false;
  /// Of the last survivors that included this process.
  bool is_first_survivor = false;
  RecoveryAction awaited = RecoveryAction::kReturn;  ///< whose outcome is the next event

  /// The launcher was notified that this process keeps its state.
  bool is_announced = false;
  /// It is in a group of all ranks of its generation.
  bool has_group = false;
  /// It waits at a boundary for the others; else in a section.
  bool is_at_boundary = false;
  /// The last boundary, of which this rank holds the state, is the training's end.
  bool is_end = false;
  /// It writes and prints for the job: rank 0, or the first of the survivors that finish a section.
  bool is_main = false;
  /// At the next boundary ranks compare their parameters, because they have joined a new
  /// generation.
  bool compares_soon = false;
  /// A copy in memory is due at this boundary, and a snapshot.
  bool copy_is_due = false;
  bool snapshot_is_due = false;
  /// In the last meeting no rank held a state, and all programs load a snapshot.
  bool starts_over = false;

  std::uint64_t generation = 0;          ///< of the place that this process has; 0: none yet
  std::int64_t boundaries = 0;           ///< passed by the training
  std::int64_t sections = 0;             ///< complete since the last of them
  std::int64_t boundary_generation = 0;  ///< which passed the last boundary; -1: it knows of none
  std::int64_t steps = 0;                ///< updates of the parameters, at the boundary
  std::int64_t checked_steps = 0;        ///< when copies and comparisons were last due
  std::int64_t recoveries = 0;
  /// Ranks of the group that finishes a section, from the last meeting.
  std::vector<int> survivors{};
  /// The group that finishes a section lacks ranks.
  bool lacks_ranks = false;
  /// The state that all ranks take, from the last meeting.
  SourceChoice source{};
  /// The state comes from this rank.
  bool is_source = false;
  /// This rank replaces its state by the one that is sent.
  bool takes_state = false;

  /// Everything that the program does before the next boundary is discarded.
  bool is_discarding() const {
    return phase == RecoveryPhase::kDiscarding || phase == RecoveryPhase::kJoining ||
           phase == RecoveryPhase::kReceived || phase == RecoveryPhase::kFinishing;
  }
  /// The program's collectives would reach no rank.
  bool has_lost_group() const { return is_discarding() || phase == RecoveryPhase::kGroupLost; }
  /// A collective of the program has succeeded. Outside a section, on only some ranks, its values
  /// differ from those on all ranks.
  void note_collective() {
    const bool is_partial =
        phase == RecoveryPhase::kGroupLost || (phase == RecoveryPhase::kSurvivors && lacks_ranks);
    if (is_partial && call == RecoveryCall::kNone && held == HeldState::kWhole)
      held = HeldState::kUncertain;
  }
  bool is_active() const {
    return phase != RecoveryPhase::kInactive && phase != RecoveryPhase::kEnded;
  }
  /// Standing of the last boundary, if this rank holds its state.
  Standing standing() const;
  /// Without `memory`, `snapshot_steps` and `loads_snapshot`.
  RankReport report() const;
};

/// Events. An outcome follows its action.
namespace called {

/// `generation`, `rank`: this process's, from 1; `can_recover`: the launcher replaces ranks;
/// `is_standby`: it has no rank yet; `owns_loop`: the process is at a boundary, and all ranks agree
/// on a state.
struct Join {
  std::uint64_t generation = 1;
  int rank = 0;
  bool can_recover = false;
  bool is_standby = false;
  bool owns_loop = false;
};
/// Training can be recovered from now on.
struct Activate {};
/// Errors are the program's own from now on.
struct Deactivate {};
/// A collective of the program has failed because a rank is lost.
struct CollectiveFailed {};
/// The step, which seemed to be complete, has another update.
struct MoreUpdates {};
/// `steps`: updates of the parameters so far. `has_new_shards`: the program has changed shards
/// since it left their copies; where survivors have, the step is discarded.
struct Boundary {
  BoundaryKind kind = BoundaryKind::kStep;
  std::int64_t steps = 0;
  bool has_new_shards = false;
};
/// In a loop that the recovery owns: code since the last boundary has thrown because a rank is
/// lost, and will run again.
struct StepFailed {};
/// The process ends before the training's end because it was preempted: with all ranks, or without
/// the others, also during another call that waits for them.
struct Leave {};
/// Before the first boundary the program must know how far training is.
struct Arrive {};
struct RunOnSurvivors {
  bool has_new_shards = false;  ///< as in Boundary
};
/// The program must know whether the step, of which it has made the updates, counts.
struct CompleteStep {};

}  // namespace called

namespace outcome {

struct Done {};
/// A rank is lost or the generation is over. `state_is_lost`: this rank's state was being replaced.
/// `shards_are_kept`: of kKeepShards: all ranks have left copies all the same.
struct GroupLost {
  bool state_is_lost = false;
  bool shards_are_kept = false;
};
struct PlaceTaken {
  std::uint64_t generation = 0;
};
/// The reports of all ranks; `rank`: this one.
struct ReportsGathered {
  std::span<const RankReport> reports{};
  int rank = 0;
};
/// `is_whole`: the state is that of the last boundary.
struct RolledBack {
  bool is_whole = true;
};
/// `steps`: of what was loaded; -1: no snapshot is complete.
struct SnapshotLoaded {
  std::int64_t steps = -1;
};
/// `is_newer`: the snapshot has more updates than the copy.
struct SnapshotCompared {
  bool is_newer = false;
};
/// `steps`: updates of the parameters so far, the same on all ranks.
struct Joined {
  std::int64_t steps = 0;
};
/// Another error, which ends the call and is the program's.
struct Failed {};

}  // namespace outcome

using RecoveryEvent =
    std::variant<called::Join, called::Activate, called::Deactivate, called::CollectiveFailed,
                 called::MoreUpdates, called::Boundary, called::StepFailed, called::Leave,
                 called::Arrive, called::RunOnSurvivors, called::CompleteStep, outcome::Done,
                 outcome::GroupLost, outcome::PlaceTaken, outcome::ReportsGathered,
                 outcome::SnapshotLoaded, outcome::SnapshotCompared, outcome::Joined,
                 outcome::RolledBack, outcome::Failed>;

/// Applies an event to the state and returns the action to execute.
RecoveryAction step(RecoveryState& state, const RecoveryEvent& event);

/// Whether the outcome of the awaited action may be GroupLost; else an error is the program's.
bool can_lose_group(const RecoveryState& state);

}  // namespace lockstep::inline internal
