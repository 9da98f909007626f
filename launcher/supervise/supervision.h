#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "diagnose/verdict/generation_outcome.h"
#include "diagnose/verdict/hang_verdict.h"
#include "launcher/rendezvous/rendezvous_state.h"
#include "launcher/supervise/stop_sequence.h"
#include "lockstep/job/internal/worker_message.h"
#include "lockstep/os/process/signals.h"

// The supervision of a machine's workers as a state machine, without clock and system calls:
// docs/supervision.md explains every transition. Supervisor produces the events and executes the
// actions.

namespace lockstep::inline internal {

/// Number of a worker in the order of starts, from 1.
using WorkerId = int;

/// State of a worker.
enum class WorkerState {
  kStarting,     ///< runs, without any message; programs that keep no state stay here
  kUnprotected,  ///< has announced that its training continues without recovery
  kRunning,      ///< keeps its state, and takes part in the generation
  kLeft,         ///< left its group, and waits for its rank in the next generation
  kRecovering,   ///< was sent a rank, and has not joined yet
  kWarmingUp,    ///< a standby worker that is not ready
  kStandby,      ///< a standby worker that is ready for a rank
  kDone,         ///< its training is complete: it keeps no state any more
  kHanging,      ///< was killed because it hangs
  kDismissed,    ///< has no rank any more: how it ends does not matter
  kStopping,     ///< is stopped with all others
  kEnded,        ///< its process has ended; processes that it started still run
};
const char* name_of(WorkerState state);

/// A worker as the supervision sees it.
struct SupervisedWorker {
  using Time = StopSequence::Time;

  WorkerState state = WorkerState::kStarting;
  /// Its rank and, as they become known, the facts of its end. A standby worker has rank -1.
  WorkerExit exit{};
  bool link_is_open = true;
  /// It took the rank of a lost worker, which the launcher has yet to print.
  bool is_replacement = false;
  /// It was in a collective when its stack was last read.
  bool is_in_collective = false;
  /// Longest time in which it reads a message, unless it hangs.
  std::chrono::milliseconds reads_within{};
  /// kRunning, kRecovering: in a search for a late rank, when it is killed unless it has left its
  /// group.
  std::optional<Time> leaves_by{};
  /// kRecovering: when it is killed unless it has joined.
  std::optional<Time> joins_by{};
  /// When a deadline of its own expired last in this generation.
  std::optional<Time> deadline_expired_at{};
  /// When it is killed: in kDismissed; in kDone if others wait for its end; or after its link
  /// closed.
  std::optional<Time> kill_at{};
  /// A signal that is forwarded once the worker has a handler for it.
  struct Notice {
    Time until{};
    /// While the signal is blocked: when it counts as blocked permanently.
    std::optional<Time> blocked_until{};
  };
  std::map<int, Notice> notices{};

  bool is_alive() const { return state != WorkerState::kEnded; }
  bool is_standby() const { return exit.rank < 0; }
  bool keeps_state() const {
    return state == WorkerState::kRunning || state == WorkerState::kLeft ||
           state == WorkerState::kRecovering;
  }
  /// Whether it can get a rank in the next generation.
  bool is_kept() const { return keeps_state() && link_is_open; }
  bool is_ready_standby() const { return state == WorkerState::kStandby && link_is_open; }
};

/// Phase of the supervision.
enum class SupervisionPhase {
  kBeginning,  ///< no generation has begun
  kRunning,    ///< the workers of the generation run
  kOver,       ///< a worker failed: the generation cannot continue
  kBetween,    ///< workers that keep their state wait for the next generation
  kPreempted,  ///< while they wait, a worker saved its state and ended
  kStopping,   ///< all workers are stopped: StopSequence
  kFinished,   ///< no worker is left to supervise
};
const char* name_of(SupervisionPhase phase);

/// Progress of the search for the late rank, once in a generation.
enum class HangSearch {
  kNone,
  kExplaining,  ///< the stacks of all workers are read
  kLeaving,     ///< the workers were asked to leave their group: one that does not is killed
  kDone
};

/// Options of the supervision.
struct SupervisionOptions {
  std::chrono::milliseconds shutdown_timeout{};
  int standby_workers = 0;
};

/// State of the supervision of this machine's workers.
struct SupervisionState {
  using Time = StopSequence::Time;

  explicit SupervisionState(const SupervisionOptions& how)
      : options(how), stop(how.shutdown_timeout) {}

  SupervisionOptions options;
  SupervisionPhase phase = SupervisionPhase::kBeginning;
  std::uint64_t generation = 0;
  /// Number of ranks on this machine in this generation.
  int worker_count = 0;
  std::map<WorkerId, SupervisedWorker> workers;
  WorkerId last_worker = 0;
  StopSequence stop;
  /// The last view of the rendezvous.
  AgentView view;
  GenerationOutcome outcome;
  /// Cause of outcome.lost.
  LeftGroup::Cause lost_cause = LeftGroup::Cause::kError;
  /// kBetween: number of exits in the outcome that belong to the last generation.
  std::ptrdiff_t old_exits = 0;
  /// A worker left its group: how long to wait for the end of the worker that is the cause.
  std::optional<Time> cause_by;
  HangSearch search = HangSearch::kNone;
  /// The first rank that was late when a hang was explained last.
  std::optional<WorkerId> late_worker;
  /// Further expired deadlines before this time belong to the hang that was explained last.
  std::optional<Time> hang_explained_until;
  /// How long to wait for the end of workers in kHanging.
  std::optional<Time> hanging_end_by;
  /// How long to wait for the end of killed workers when no other is left.
  std::optional<Time> killed_end_by;
  /// When to start the next standby worker.
  std::optional<Time> standby_at;
  /// Number of standby workers in a row that ended before they were ready.
  int failed_standbys = 0;
  /// All processes of the workers have been sent SIGTERM.
  bool sent_sigterm = false;
};

/// Where a worker is, from its stack.
struct StackPlace {
  std::string hangs_in{};
  bool is_in_collective = false;
  bool is_late = false;  ///< others waited for it when their deadline expired
};

/// Fields that several events and actions share.
struct WorkerAndSignal {
  WorkerId worker = 0;
  int signal = 0;
};

/// Events. An event of an unknown worker changes nothing.
namespace happened {

/// The next generation: this machine runs the ranks from `first_rank` on.
struct GenerationReady {
  std::uint64_t generation = 0;
  int first_rank = 0;
  int worker_count = 0;
};
struct WorkerStarted {
  WorkerId worker = 0;
  pid_t pid = 0;
  std::filesystem::path directory{};
};
/// StateFile, CallsFile and PythonStacksPipe change nothing.
struct MessageReceived {
  WorkerId worker = 0;
  WorkerMessage message{};
};
struct LinkClosed {
  WorkerId worker = 0;
};
/// The worker did not read its Place message.
struct RankNotRead {
  WorkerId worker = 0;
};
/// `exit`: how the process ended, and the error that it left.
struct WorkerEnded {
  WorkerId worker = 0;
  WorkerExit exit{};
};
/// A signal such as SIGSTOP stopped the worker.
struct WorkerSuspended : WorkerAndSignal {};
/// All processes that a worker in kEnded started have ended.
struct GroupEmptied {
  WorkerId worker = 0;
};
/// The launcher got a signal that stops the job.
struct StopSignal {
  int signal = 0;
};
/// The launcher got a signal to forward.
struct NoticeSignal {
  int signal = 0;
};
struct SignalFateRead : WorkerAndSignal {
  SignalFate fate = SignalFate::kEnds;
};
struct HangExplained {
  std::map<WorkerId, StackPlace> places{};
};
/// Stacks of workers that are killed because they hang, or will be.
struct HangingPlacesRead {
  std::map<WorkerId, StackPlace> places{};
};
struct ViewChanged {
  AgentView view{};
};
/// The rendezvous is no longer reachable.
struct RendezvousLost {};
/// All previous happenings have been events: time for decisions and deadlines. Ends of several
/// workers before it are judged together.
struct DecisionDue {};

}  // namespace happened

using SupervisionEvent =
    std::variant<happened::GenerationReady, happened::WorkerStarted, happened::MessageReceived,
                 happened::LinkClosed, happened::RankNotRead, happened::WorkerEnded,
                 happened::WorkerSuspended, happened::GroupEmptied, happened::StopSignal,
                 happened::NoticeSignal, happened::SignalFateRead, happened::HangExplained,
                 happened::HangingPlacesRead, happened::ViewChanged, happened::RendezvousLost,
                 happened::DecisionDue>;

/// Actions. If an action has an answer, that is the next event.
namespace action {

/// Answer: WorkerStarted. `local_rank`: -1 for a standby worker.
struct StartWorker {
  WorkerId worker = 0;
  int local_rank = 0;
};
/// Answer: RankNotRead, if the worker does not read it. `is_first`: for a standby worker, which is
/// also sent the memory file that the launcher keeps.
struct SendRank {
  WorkerId worker = 0;
  int local_rank = 0;
  bool is_first = false;
};
struct SendLeaveGroup {
  WorkerId worker = 0;
  std::uint64_t generation = 0;
};
/// Signals the worker's process.
struct SignalWorker : WorkerAndSignal {};
/// Signals the worker and all processes that it started.
struct SignalGroup : WorkerAndSignal {};
/// Signals all groups except those of the workers in `spared`, and continues stopped processes so
/// that they receive it.
struct SignalAll {
  int signal = 0;
  std::set<WorkerId> spared{};
};
/// Answer: SignalFateRead.
struct ReadSignalFate : WorkerAndSignal {};
/// Reads the stacks of these workers and reports which rank is late. Answer: HangExplained.
struct ExplainHang {
  std::vector<WorkerId> workers{};
  std::optional<AwaitedCall> awaited{};
};
/// Reads the stacks of these workers at the same time, because the launcher waits for them. Answer:
/// HangingPlacesRead.
struct ReadHangingPlaces {
  std::vector<WorkerId> workers{};
};
/// The worker waits half a second for its stack to be read; it need not wait longer.
struct ReleaseWaitingWorker {
  WorkerId worker = 0;
};
/// The end of a worker of this generation: report it at once.
struct ReportEnd {
  WorkerExit exit{};
};
/// The end of any worker, for the job's status.
struct ShowEnd {
  WorkerExit exit{};
};
/// The generation is over for workers that wait for the next.
struct EndGeneration {
  GenerationOutcome outcome{};
};
/// Requests the next generation. Answer: GenerationReady, when it is ready. `kept`: local ranks of
/// the workers that keep their state; `standbys`: number of ready standby workers for the other
/// ranks.
struct AskForGeneration {
  std::set<int> kept{};
  int standbys = 0;
};
/// Prints a line on the console.
struct Say {
  std::string text{};
};
/// Nothing is left to supervise, except workers that could not be killed: outcome.stuck.
struct Finish {};

}  // namespace action

using SupervisionAction =
    std::variant<action::StartWorker, action::SendRank, action::SendLeaveGroup,
                 action::SignalWorker, action::SignalGroup, action::SignalAll,
                 action::ReadSignalFate, action::ExplainHang, action::ReadHangingPlaces,
                 action::ReleaseWaitingWorker, action::ReportEnd, action::ShowEnd,
                 action::EndGeneration, action::AskForGeneration, action::Say, action::Finish>;

/// Applies an event to the state. Returns the actions to execute, in order, before the next event
/// that is no answer.
std::vector<SupervisionAction> step(SupervisionState& state, const SupervisionEvent& event,
                                    SupervisionState::Time now);

/// When DecisionDue is needed at the latest, without another event. Empty: no deadline.
std::optional<SupervisionState::Time> next_deadline(const SupervisionState& state,
                                                    SupervisionState::Time now);

}  // namespace lockstep::inline internal
