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

// The supervision of a machine's workers as a state machine, with no clock and no system call:
// docs/supervision.md explains every transition. Supervisor turns what happens into events and
// carries the actions out.

namespace lockstep::inline internal {

/// Numbers workers in the order in which they are started, from 1.
using WorkerId = int;

enum class WorkerState {
  kStarting,     ///< runs, and has announced nothing; programs that keep no state stay here
  kUnprotected,  ///< has announced that its training continues without recovery
  kRunning,      ///< keeps its state, and takes part in the generation
  kLeft,         ///< left its group, and waits for its place in the next generation
  kRecovering,   ///< was sent a place, and has yet to join
  kWarmingUp,    ///< a standby worker that is not ready
  kStandby,      ///< a standby worker that is ready for a place
  kDone,         ///< its training is complete: it keeps no state any more
  kHanging,      ///< was killed because it hangs
  kDismissed,    ///< has no place any more: how it ends is of no account
  kStopping,     ///< is stopped with all others
  kEnded,        ///< its process has ended; processes that it started are left
};
const char* name_of(WorkerState state);

struct SupervisedWorker {
  using Time = StopSequence::Time;

  WorkerState state = WorkerState::kStarting;
  /// Its rank and, as they become known, the facts of its end. The rank of a standby worker is -1.
  WorkerExit exit{};
  bool link_is_open = true;
  /// It was in a collective when its stack was last read.
  bool is_in_collective = false;
  /// Unless it hangs, it reads a message within that time.
  std::chrono::milliseconds reads_within{};
  /// kRunning, kRecovering: when one that has not left a group with a late rank is killed.
  std::optional<Time> leaves_by{};
  /// kRecovering: when one that has not joined is killed.
  std::optional<Time> joins_by{};
  /// When it is killed: in kDismissed, in kDone when others wait for its end, or because its link
  /// is closed.
  std::optional<Time> kill_at{};
  /// A signal that is forwarded to it once it has a handler.
  struct Notice {
    Time until{};
    /// While the signal is blocked: when it counts as blocked for good.
    std::optional<Time> blocked_until{};
  };
  std::map<int, Notice> notices{};

  bool is_alive() const { return state != WorkerState::kEnded; }
  bool is_standby() const { return exit.rank < 0; }
  bool keeps_state() const {
    return state == WorkerState::kRunning || state == WorkerState::kLeft ||
           state == WorkerState::kRecovering;
  }
  /// It can get a place in the next generation.
  bool is_kept() const { return keeps_state() && link_is_open; }
  bool is_ready_standby() const { return state == WorkerState::kStandby && link_is_open; }
};

enum class SupervisionPhase {
  kBeginning,  ///< no generation has begun
  kRunning,    ///< the workers of the generation run
  kOver,       ///< a worker failed: the generation cannot continue
  kBetween,    ///< workers that keep their state wait for the next generation
  kPreempted,  ///< a worker that waited so has saved its state and ended
  kStopping,   ///< all workers are stopped: StopSequence
  kFinished,   ///< no worker is left to supervise
};
const char* name_of(SupervisionPhase phase);

/// The search for the rank that is late, once in a generation.
enum class HangSearch {
  kNone,
  kExplaining,  ///< the stacks of all workers are read
  kLeaving,     ///< the others are asked to leave their group: one that does not is killed
  kDone
};

struct SupervisionOptions {
  std::chrono::milliseconds shutdown_timeout{};
  int standby_workers = 0;
};

struct SupervisionState {
  using Time = StopSequence::Time;

  explicit SupervisionState(const SupervisionOptions& how)
      : options(how), stop(how.shutdown_timeout) {}

  SupervisionOptions options;
  SupervisionPhase phase = SupervisionPhase::kBeginning;
  std::uint64_t generation = 0;
  std::map<WorkerId, SupervisedWorker> workers;
  WorkerId last_worker = 0;
  StopSequence stop;
  /// What the rendezvous says.
  AgentView view;
  GenerationOutcome outcome;
  /// Whose failure outcome.lost is.
  LeftGroup::Cause lost_cause = LeftGroup::Cause::kError;
  /// kBetween: so many exits of the outcome are of the generation before.
  std::ptrdiff_t old_exits = 0;
  /// A worker left its group: until then the launcher waits for the end of the worker that is the
  /// cause.
  std::optional<Time> cause_by;
  HangSearch search = HangSearch::kNone;
  /// Other ranks' deadlines of the hang that was explained last expire before then.
  std::optional<Time> hang_explained_until;
  /// Until then the launcher waits for the end of workers in kHanging.
  std::optional<Time> hanging_end_by;
  /// Until then the launcher waits for the end of workers that were killed, when no other is left.
  std::optional<Time> killed_end_by;
  /// When the next standby worker is started.
  std::optional<Time> standby_at;
  /// In a row, before they were ready.
  int failed_standbys = 0;
  /// All processes of the workers have been sent SIGTERM.
  bool sent_sigterm = false;
};

/// Where a worker is, by its stack.
struct StackPlace {
  std::string hangs_in{};
  bool is_in_collective = false;
};

/// What many events and actions are of.
struct WorkerAndSignal {
  WorkerId worker = 0;
  int signal = 0;
};

/// The events. Those of a worker that is not known change nothing.
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
/// The worker did not read its place.
struct PlaceNotRead {
  WorkerId worker = 0;
};
/// `exit`: how the process ended, and what it left of its error.
struct WorkerEnded {
  WorkerId worker = 0;
  WorkerExit exit{};
};
/// SIGSTOP and the like.
struct WorkerSuspended : WorkerAndSignal {};
/// Every process that a worker in kEnded started has ended.
struct GroupEmptied {
  WorkerId worker = 0;
};
/// A signal to the launcher that stops the job, or one to forward.
struct StopSignal {
  int signal = 0;
};
struct NoticeSignal {
  int signal = 0;
};
struct SignalFateRead : WorkerAndSignal {
  SignalFate fate = SignalFate::kEnds;
};
struct HangExplained {
  std::map<WorkerId, StackPlace> places{};
};
/// Where workers are that are killed because they hang, or are about to be.
struct HangingPlacesRead {
  std::map<WorkerId, StackPlace> places{};
};
struct ViewChanged {
  AgentView view{};
};
/// The rendezvous can no longer be reached.
struct RendezvousLost {};
/// All that has happened until now has been an event: it is time for decisions and deadlines. Ends
/// of several workers before it are judged together.
struct DecisionDue {};

}  // namespace happened

using SupervisionEvent =
    std::variant<happened::GenerationReady, happened::WorkerStarted, happened::MessageReceived,
                 happened::LinkClosed, happened::PlaceNotRead, happened::WorkerEnded,
                 happened::WorkerSuspended, happened::GroupEmptied, happened::StopSignal,
                 happened::NoticeSignal, happened::SignalFateRead, happened::HangExplained,
                 happened::HangingPlacesRead, happened::ViewChanged, happened::RendezvousLost,
                 happened::DecisionDue>;

/// The actions. An answer, where there is one, is the next event.
namespace action {

/// Answer: WorkerStarted. `local_rank`: -1 for a standby worker.
struct StartWorker {
  WorkerId worker = 0;
  int local_rank = 0;
};
/// Answer: PlaceNotRead, if so. `is_first`: of a standby worker, which gets the memory file that
/// the launcher keeps, too.
struct SendPlace {
  WorkerId worker = 0;
  int local_rank = 0;
  bool is_first = false;
};
struct SendLeaveGroup {
  WorkerId worker = 0;
  std::uint64_t generation = 0;
};
/// To its process alone.
struct SignalWorker : WorkerAndSignal {};
/// To all that it started, too.
struct SignalGroup : WorkerAndSignal {};
/// To all groups but those of the workers in `spared`; stopped processes are continued, to take it.
struct SignalAll {
  int signal = 0;
  std::set<WorkerId> spared{};
};
/// Answer: SignalFateRead.
struct ReadSignalFate : WorkerAndSignal {};
/// Reads the stacks of these workers and reports who is late. Answer: HangExplained.
struct ExplainHang {
  std::vector<WorkerId> workers{};
  std::optional<AwaitedCall> awaited{};
};
/// Of all at once, as the launcher waits for it. Answer: HangingPlacesRead.
struct ReadHangingPlaces {
  std::vector<WorkerId> workers{};
};
/// It waits half a second for its stack to be read, and need not any longer.
struct ReleaseWaitingWorker {
  WorkerId worker = 0;
};
/// Its end counts in this generation: to be reported at once.
struct ReportEnd {
  WorkerExit exit{};
};
/// For the status of the job.
struct ShowEnd {
  WorkerExit exit{};
};
/// The generation is over for workers that wait for the next.
struct EndGeneration {
  GenerationOutcome outcome{};
};
/// Asks for the next generation. Answer: GenerationReady, once it is ready. `kept`: the local ranks
/// of workers that get a place in it; of the others `standbys` are ready.
struct AskForGeneration {
  std::set<int> kept{};
  int standbys = 0;
};
struct Say {
  std::string text{};
};
/// Nothing is left to supervise, but for the workers that could not be killed: outcome.stuck.
struct Finish {};

}  // namespace action

using SupervisionAction =
    std::variant<action::StartWorker, action::SendPlace, action::SendLeaveGroup,
                 action::SignalWorker, action::SignalGroup, action::SignalAll,
                 action::ReadSignalFate, action::ExplainHang, action::ReadHangingPlaces,
                 action::ReleaseWaitingWorker, action::ReportEnd, action::ShowEnd,
                 action::EndGeneration, action::AskForGeneration, action::Say, action::Finish>;

/// Changes the state and returns the actions to carry out, in order, before the next event that is
/// no answer.
std::vector<SupervisionAction> step(SupervisionState& state, const SupervisionEvent& event,
                                    SupervisionState::Time now);

/// When DecisionDue is to come at the latest, though nothing happens. Nothing: no deadline.
std::optional<SupervisionState::Time> next_deadline(const SupervisionState& state,
                                                    SupervisionState::Time now);

}  // namespace lockstep::inline internal
