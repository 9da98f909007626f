#include "launcher/supervise/supervision.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "diagnose/verdict/worker_text.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/text.h"

namespace lockstep::inline internal {
namespace {

using std::chrono::milliseconds;

using State = WorkerState;
using Time = SupervisionState::Time;
using Actions = std::vector<SupervisionAction>;

// A worker that sees another's end is faster than the system, which takes that one's memory apart
// before it says so.
constexpr milliseconds kCauseComes{1'000};
// Delay of a standby worker: the workers that train need the processors first.
constexpr milliseconds kOthersFirst{500};
constexpr int kMostFailedStandbys = 3;
// How often the next generation is asked for if nothing else happens.
constexpr milliseconds kAskAgain{1'000};
// For a worker that is asked to leave its group, and for one that is in a collective and leaves it
// by itself, on a machine that may be busy.
constexpr milliseconds kTimeToLeave{500};
constexpr milliseconds kTimeToLeaveCollective{5'000};
// Between the deadlines of ranks that wait for the same one.
constexpr milliseconds kSameHang{2'000};
// From SIGKILL to the end of the worker.
constexpr milliseconds kEnds{1'000};
// A worker between generations whose connection is closed is ending, for which it has that time.
constexpr milliseconds kTimeToEnd{10'000};
// How often it is checked whether a worker handles a signal that is to be forwarded.
constexpr milliseconds kLookAgain{50};
// Blocked for that long without a break, a signal counts as blocked for good, as for sigwait. A
// program that starts another blocks its signals too, on a busy machine for a tenth of a second,
// and may have no handler.
constexpr milliseconds kBlockedForGood{1'000};
// A program starts within that time.
constexpr milliseconds kMostToListen{30'000};

bool has_passed(const std::optional<Time>& time, Time now) {
  return time && *time <= now;
}

bool is_told_to_stop(const SupervisedWorker& worker) {
  return worker.state == State::kStopping || worker.state == State::kDismissed;
}

// Only a process that is stuck in the kernel is still there after a while.
bool is_killed(const SupervisedWorker& worker) {
  return worker.state == State::kHanging || (worker.state == State::kDismissed && !worker.kill_at);
}

bool any_worker(const SupervisionState& state, auto&& predicate) {
  return std::ranges::any_of(state.workers,
                             [&](const auto& entry) { return predicate(entry.second); });
}

bool any_kept(const SupervisionState& state) {
  return any_worker(state, [](const SupervisedWorker& worker) { return worker.is_kept(); });
}

bool any_alive(const SupervisionState& state) {
  return any_worker(state, [](const SupervisedWorker& worker) { return worker.is_alive(); });
}

// One that does not die is no reason to keep standby workers for.
bool any_rank_runs(const SupervisionState& state, Time now) {
  const bool hanging_should_be_gone =
      state.phase == SupervisionPhase::kBetween && has_passed(state.hanging_end_by, now);
  return any_worker(state, [&](const SupervisedWorker& worker) {
    if (!worker.is_alive() || worker.is_standby()) return false;
    return !is_killed(worker) || (worker.state == State::kHanging && !hanging_should_be_gone);
  });
}

bool waits_for_hanging(const SupervisionState& state, Time now) {
  if (state.search == HangSearch::kExplaining || state.search == HangSearch::kLeaving) return true;
  return state.hanging_end_by && *state.hanging_end_by > now &&
         any_worker(state,
                    [](const SupervisedWorker& worker) { return worker.state == State::kHanging; });
}

class Stepper {
 public:
  Stepper(SupervisionState& state, Time now) : state_(state), now_(now) {}

  Actions run(const SupervisionEvent& event) {
    std::visit([&](const auto& what) { on(what); }, event);
    return std::move(actions_);
  }

 private:
  using Worker = SupervisedWorker;

  void on(const happened::GenerationReady& event);
  void on(const happened::WorkerStarted& event);
  void on(const happened::MessageReceived& event);
  void on(const happened::LinkClosed& event);
  void on(const happened::PlaceNotRead& event);
  void on(const happened::WorkerEnded& event);
  void on(const happened::WorkerSuspended& event);
  void on(const happened::GroupEmptied& event);
  void on(const happened::StopSignal& event);
  void on(const happened::NoticeSignal& event);
  void on(const happened::SignalFateRead& event);
  void on(const happened::HangExplained& event);
  void on(const happened::HangingPlaceRead& event);
  void on(const happened::ViewChanged& event) { state_.view = event.view; }
  void on(const happened::RendezvousLost&) { stop(state_.stop.on_failure(now_)); }
  void on(const happened::DecisionDue&);

  void receive(WorkerId id, Worker& worker, const KeepsState& message);
  void receive(WorkerId id, Worker& worker, const LeftGroup& message);
  void receive(WorkerId id, Worker& worker, const TrainingDone& message);
  void receive(WorkerId id, Worker& worker, const TookPlace& message);
  void receive(WorkerId id, Worker& worker, const WaitedInVain& message);
  void receive(WorkerId, Worker& worker, const GivesUp&) { worker.exit.gives_up = true; }
  void receive(WorkerId, Worker&, const StateFile&) {}
  void receive(WorkerId, Worker&, const CallsFile&) {}

  Worker* find(WorkerId id) {
    const auto found = state_.workers.find(id);
    return found == state_.workers.end() ? nullptr : &found->second;
  }
  void act(SupervisionAction action) { actions_.push_back(std::move(action)); }
  bool is_stopping() const { return state_.stop.started(); }
  bool is_between() const {
    return state_.phase == SupervisionPhase::kBetween ||
           state_.phase == SupervisionPhase::kPreempted;
  }
  void count_end(Worker& worker);
  void note_end_between(const WorkerExit& exit);
  void note_failed_standby(const WorkerExit& exit);
  void forget_old_exits();
  void fill(int local_rank, int rank);
  void start(int local_rank, int rank);
  void place(WorkerId id, Worker& worker, int local_rank, int rank);
  void dismiss(WorkerId id, Worker& worker, milliseconds patience);
  void stop(int signal);
  void keep_deadlines();
  void explain_hang(std::optional<AwaitedCall> awaited);
  void search_hang();
  void ask_all_to_leave();
  void ask_to_leave();
  void kill_late_to_join();
  void kill_late_to_leave();
  void kill_hanging(WorkerId id, Worker& worker, std::string why);
  void end_generation_if_over();
  bool keep_workers();
  void ask_for_generation();
  void start_standby();
  void dismiss_standbys();
  void finish();

  SupervisionState& state_;
  const Time now_;
  Actions actions_;
};

// Generations.

void Stepper::on(const happened::GenerationReady& event) {
  if (is_stopping() || state_.phase == SupervisionPhase::kFinished) return;
  state_.phase = SupervisionPhase::kRunning;
  state_.generation = event.generation;
  state_.search = HangSearch::kNone;
  state_.hang_explained_until.reset();
  state_.cause_by.reset();
  state_.hanging_end_by.reset();
  state_.outcome = {};
  state_.old_exits = 0;
  std::set<int> taken;
  for (auto& [id, worker] : state_.workers) {
    if (!worker.is_alive() || worker.is_standby() || worker.state == State::kDismissed) continue;
    const int local_rank = worker.exit.local_rank;
    if (!worker.is_kept()) {
      // Its end may come late, and is no failure of this generation.
      dismiss(id, worker, milliseconds(0));
    } else if (local_rank >= event.worker_count) {
      dismiss(id, worker, state_.options.shutdown_timeout);
    } else {
      taken.insert(local_rank);
      place(id, worker, local_rank, event.first_rank + local_rank);
    }
  }
  for (int local_rank = 0; local_rank < event.worker_count; ++local_rank) {
    if (!taken.contains(local_rank)) fill(local_rank, event.first_rank + local_rank);
  }
}

void Stepper::fill(int local_rank, int rank) {
  const auto standby = std::ranges::find_if(
      state_.workers, [](const auto& entry) { return entry.second.is_ready_standby(); });
  if (standby == state_.workers.end()) {
    start(local_rank, rank);
  } else {
    place(standby->first, standby->second, local_rank, rank);
  }
}

void Stepper::start(int local_rank, int rank) {
  const WorkerId id = ++state_.last_worker;
  Worker& worker = state_.workers[id];
  if (rank < 0) worker.state = State::kWarmingUp;
  worker.exit.rank = rank;
  worker.exit.local_rank = local_rank;
  act(action::StartWorker{id, local_rank});
}

void Stepper::on(const happened::WorkerStarted& event) {
  Worker* const worker = find(event.worker);
  if (worker == nullptr) return;
  worker->exit.pid = event.pid;
  worker->exit.directory = event.directory;
}

// One that has yet to answer for an earlier place has until then for this one, too.
void Stepper::place(WorkerId id, Worker& worker, int local_rank, int rank) {
  if (!worker.joins_by) worker.joins_by = now_ + worker.reads_within + kTimeToLeave;
  worker.state = State::kRecovering;
  worker.exit.rank = rank;
  worker.exit.local_rank = local_rank;
  worker.exit.waited_in_vain = false;
  worker.exit.hangs_in.clear();
  worker.is_in_collective = false;
  worker.leaves_by.reset();
  act(action::SendPlace{id, local_rank});
}

// It ended, or hangs, since before this generation: no reason for another.
void Stepper::on(const happened::PlaceNotRead& event) {
  Worker* const worker = find(event.worker);
  if (worker == nullptr || worker->state != State::kRecovering) return;
  act(action::Say{concat(describe_worker(worker->exit), " does not read its place in generation ",
                         state_.generation, "; a replacement takes its rank")});
  dismiss(event.worker, *worker, milliseconds(0));
  fill(worker->exit.local_rank, worker->exit.rank);
}

void Stepper::dismiss(WorkerId id, Worker& worker, milliseconds patience) {
  worker.kill_at.reset();
  if (worker.is_alive()) worker.state = State::kDismissed;
  if (patience > milliseconds(0)) worker.kill_at = now_ + patience;
  act(action::SignalGroup{id, patience > milliseconds(0) ? SIGTERM : SIGKILL});
}

// Messages.

void Stepper::on(const happened::MessageReceived& event) {
  Worker* const worker = find(event.worker);
  if (worker == nullptr) return;
  std::visit([&](const auto& message) { receive(event.worker, *worker, message); }, event.message);
}

void Stepper::receive(WorkerId, Worker& worker, const KeepsState& message) {
  worker.reads_within = message.reads_within;
  if (worker.state == State::kStarting) worker.state = State::kRunning;
  if (worker.state != State::kWarmingUp) return;
  worker.state = State::kStandby;
  state_.failed_standbys = 0;
}

void Stepper::receive(WorkerId, Worker& worker, const TrainingDone&) {
  if (worker.keeps_state() || worker.state == State::kStarting) worker.state = State::kDone;
}

void Stepper::receive(WorkerId, Worker& worker, const TookPlace& message) {
  if (worker.state != State::kRecovering || message.generation != state_.generation) return;
  worker.state = State::kRunning;
  worker.joins_by.reset();
}

void Stepper::receive(WorkerId, Worker& worker, const LeftGroup& message) {
  if (message.generation != state_.generation || is_between() || is_stopping()) return;
  if (worker.state == State::kRunning || worker.state == State::kRecovering) {
    worker.state = State::kLeft;  // So it has read its place.
    worker.joins_by.reset();
  }
  if (!state_.cause_by) state_.cause_by = now_ + kCauseComes;
  GenerationOutcome& outcome = state_.outcome;
  if (outcome.step.empty() && message.step) outcome.step = std::to_string(*message.step);
  using Cause = LeftGroup::Cause;
  const bool is_better =
      state_.lost_cause == Cause::kOtherWorker && message.cause != Cause::kOtherWorker;
  if (outcome.lost.empty() || is_better) {
    state_.lost_cause = message.cause;
    outcome.lost = concat(describe_worker(worker.exit), " left its group: ", message.text);
  }
  if (message.cause != Cause::kLateRank) return;
  outcome.is_hang = true;
  search_hang();
}

void Stepper::receive(WorkerId id, Worker& worker, const WaitedInVain& message) {
  if (is_between() || is_stopping()) return;
  worker.exit.waited_in_vain = true;
  explain_hang(AwaitedCall{.operation = message.operation,
                           .group = message.group,
                           .sequence = message.sequence,
                           .waited = message.waited});
  act(action::ReleaseWaitingWorker{id});
}

// Nobody can place it any more, and no other may be left that the launcher waits with.
void Stepper::on(const happened::LinkClosed& event) {
  Worker* const worker = find(event.worker);
  if (worker == nullptr) return;
  worker->link_is_open = false;
  if (state_.phase == SupervisionPhase::kBetween && worker->keeps_state()) {
    worker->kill_at = now_ + kTimeToEnd;
  }
}

// Ends.

void Stepper::on(const happened::WorkerEnded& event) {
  Worker* const found = find(event.worker);
  if (found == nullptr || !found->is_alive()) return;
  Worker& worker = *found;
  const WorkerExit known = std::exchange(worker.exit, event.exit);
  WorkerExit& exit = worker.exit;
  exit.rank = known.rank;
  exit.local_rank = known.local_rank;
  exit.pid = known.pid;
  exit.directory = known.directory;
  exit.gives_up = known.gives_up;
  exit.late_for = known.late_for;
  exit.hangs_in = known.hangs_in;
  exit.waited_in_vain = known.waited_in_vain;
  exit.told_to_stop = is_told_to_stop(worker);
  const bool has_state = worker.keeps_state() || worker.state == State::kHanging;
  exit.left_early = has_state && exit.signal == 0 && exit.exit_code == 0;
  if (exit.signal == 0 || exit.told_to_stop) exit.collectives.clear();
  const State before = std::exchange(worker.state, State::kEnded);
  worker.link_is_open = false;
  worker.notices.clear();
  if (before == State::kWarmingUp) note_failed_standby(exit);
  if (before != State::kDismissed && !worker.is_standby()) count_end(worker);
  act(action::ShowEnd{exit});
}

void Stepper::count_end(Worker& worker) {
  const WorkerExit& exit = worker.exit;
  act(action::ReportEnd{exit});
  state_.outcome.exits.push_back(exit);
  if (state_.phase == SupervisionPhase::kRunning && exit.failed())
    state_.phase = SupervisionPhase::kOver;
  if (state_.phase == SupervisionPhase::kBetween) note_end_between(exit);
}

// A failure here is not reported as a fault: the next generation replaces the worker anyway.
void Stepper::note_end_between(const WorkerExit& exit) {
  if (!exit.failed()) return;
  if (exit.exit_code == kExitPreempted) {
    state_.phase = SupervisionPhase::kPreempted;
    forget_old_exits();
    return;
  }
  act(action::Say{concat(describe_worker(exit), " ", describe_failure(exit),
                         " while it waited for the next generation; a replacement takes its "
                         "rank")});
}

void Stepper::forget_old_exits() {
  auto& exits = state_.outcome.exits;
  exits.erase(exits.begin(), exits.begin() + std::exchange(state_.old_exits, 0));
  state_.outcome.lost.clear();
}

void Stepper::note_failed_standby(const WorkerExit& exit) {
  if (++state_.failed_standbys < kMostFailedStandbys) return;
  act(action::Say{concat("no more standby workers: the last ", kMostFailedStandbys,
                         " ended before they were ready (", describe_end(exit), ")")});
}

void Stepper::on(const happened::GroupEmptied& event) {
  const Worker* const worker = find(event.worker);
  if (worker != nullptr && !worker->is_alive()) state_.workers.erase(event.worker);
}

// If no other rank waits for it, as after the last collective, nobody else says so.
void Stepper::on(const happened::WorkerSuspended& event) {
  const Worker* const worker = find(event.worker);
  if (worker == nullptr || !worker->is_alive() || is_told_to_stop(*worker)) return;
  act(action::Say{concat(describe_worker(worker->exit), " is stopped by ",
                         signal_name(event.signal), "; `kill -CONT ", worker->exit.pid,
                         "` continues it")});
}

// Signals.

void Stepper::on(const happened::StopSignal& event) {
  if (state_.outcome.stop_signal == 0) state_.outcome.stop_signal = event.signal;
  if (!is_stopping()) {
    if (is_between()) forget_old_exits();
    act(action::Say{concat(signal_name(event.signal), ": stopping ",
                           count_text(state_.workers.size(), "worker"),
                           "; a second Ctrl-C (SIGINT) kills them")});
  }
  stop(state_.stop.on_signal(event.signal, now_));
}

void Stepper::stop(int signal) {
  if (is_stopping() && state_.phase != SupervisionPhase::kFinished)
    state_.phase = SupervisionPhase::kStopping;
  if (signal == 0) return;
  state_.sent_sigterm = state_.sent_sigterm || signal == SIGTERM;
  for (auto& [id, worker] : state_.workers) {
    if (worker.is_alive() && worker.state != State::kDismissed) worker.state = State::kStopping;
  }
  act(action::SignalAll{signal});
}

void Stepper::on(const happened::NoticeSignal& event) {
  for (auto& [id, worker] : state_.workers) {
    if (!worker.is_alive()) continue;
    worker.notices.try_emplace(event.signal, Worker::Notice{.until = now_ + kMostToListen});
    act(action::ReadSignalFate{id, event.signal});
  }
}

// A worker that is starting has no handler yet, and would end.
void Stepper::on(const happened::SignalFateRead& event) {
  Worker* const worker = find(event.worker);
  if (worker == nullptr) return;
  const auto found = worker->notices.find(event.signal);
  if (found == worker->notices.end()) return;
  Worker::Notice& notice = found->second;
  if (event.fate != SignalFate::kBlocked) {
    notice.blocked_until.reset();
  } else if (!notice.blocked_until) {
    notice.blocked_until = now_ + kBlockedForGood;
  }
  if (event.fate == SignalFate::kSpares || has_passed(notice.blocked_until, now_)) {
    act(action::SignalWorker{event.worker, event.signal});
  } else if (notice.until > now_) {
    return;
  } else {
    act(action::Say{concat(signal_name(event.signal), " not forwarded to ",
                           describe_worker(worker->exit),
                           ": the worker has no handler, so the signal would kill it")});
  }
  worker->notices.erase(found);
}

// Workers that hang.

// At once, as those that wait leave their group soon.
void Stepper::explain_hang(std::optional<AwaitedCall> awaited) {
  if (state_.hang_explained_until && *state_.hang_explained_until > now_) return;
  action::ExplainHang explain{.awaited = std::move(awaited)};
  for (const auto& [id, worker] : state_.workers) {
    const bool has_rank = worker.is_alive() && !worker.is_standby();
    if (has_rank && worker.state != State::kDismissed) explain.workers.push_back(id);
  }
  state_.hang_explained_until = now_ + kSameHang;
  act(std::move(explain));
}

void Stepper::on(const happened::HangExplained& event) {
  for (const auto& [id, place] : event.places) {
    Worker* const worker = find(id);
    if (worker == nullptr) continue;
    worker->exit.hangs_in = place.hangs_in;
    worker->is_in_collective = place.is_in_collective;
  }
  state_.hang_explained_until = now_ + kSameHang;
  if (state_.search == HangSearch::kExplaining) ask_all_to_leave();
}

// Workers that wait in a collective leave soon, or are asked to; the others compute, or hang.
void Stepper::search_hang() {
  if (state_.search != HangSearch::kNone) return;
  state_.search = HangSearch::kExplaining;
  const std::size_t actions = actions_.size();
  explain_hang(std::nullopt);
  // The ranks' own deadlines had it explained a moment ago.
  if (actions_.size() == actions) ask_all_to_leave();
}

void Stepper::ask_all_to_leave() {
  state_.search = HangSearch::kLeaving;
  for (auto& [id, worker] : state_.workers) {
    if (worker.state != State::kRunning && worker.state != State::kRecovering) continue;
    worker.leaves_by = now_ + (worker.is_in_collective ? kTimeToLeaveCollective : kTimeToLeave);
    // That others were late to join says nothing of one that still has the time to.
    if (worker.joins_by) worker.leaves_by = std::max(*worker.leaves_by, *worker.joins_by);
  }
  ask_to_leave();
}

// Their peers may be gone without their notice, and nobody else ends their wait.
void Stepper::ask_to_leave() {
  for (const auto& [id, worker] : state_.workers) {
    if (!worker.is_kept() || worker.state == State::kLeft) continue;
    act(action::SendLeaveGroup{id, state_.generation});
  }
}

void Stepper::kill_late_to_join() {
  for (auto& [id, worker] : state_.workers) {
    if (!worker.is_kept() || !has_passed(worker.joins_by, now_)) continue;
    kill_hanging(id, worker,
                 concat("it did not join generation ", state_.generation, " within ",
                        worker.reads_within.count(), " ms"));
  }
}

void Stepper::kill_late_to_leave() {
  if (state_.search != HangSearch::kLeaving) return;
  state_.search = HangSearch::kDone;
  const std::string& lost = state_.outcome.lost;
  for (auto& [id, worker] : state_.workers) {
    if (!worker.is_kept() || worker.state == State::kLeft || !worker.leaves_by) continue;
    if (*worker.leaves_by <= now_) {
      kill_hanging(id, worker, lost.empty() ? state_.view.cause : lost);
    } else {
      state_.search = HangSearch::kLeaving;
    }
  }
  if (state_.search == HangSearch::kDone) state_.cause_by = now_;
}

// It is replaced as others that end.
void Stepper::kill_hanging(WorkerId id, Worker& worker, std::string why) {
  worker.state = State::kHanging;
  worker.exit.late_for = std::move(why);
  if (worker.exit.hangs_in.empty()) act(action::ReadHangingPlace{id});
  act(action::SignalGroup{id, SIGKILL});
  state_.hanging_end_by = now_ + kEnds;
}

void Stepper::on(const happened::HangingPlaceRead& event) {
  if (Worker* const worker = find(event.worker)) worker->exit.hangs_in = event.hangs_in;
}

// Decisions.

void Stepper::on(const happened::DecisionDue&) {
  if (state_.phase == SupervisionPhase::kBeginning || state_.phase == SupervisionPhase::kFinished)
    return;
  keep_deadlines();
  if (!is_stopping()) {
    kill_late_to_join();
    kill_late_to_leave();
  }
  end_generation_if_over();
  ask_for_generation();
  start_standby();
  // A job that ends well may leave processes in the background; one that is stopped may not.
  if (!any_rank_runs(state_, now_)) dismiss_standbys();
  finish();
}

void Stepper::keep_deadlines() {
  for (auto& [id, worker] : state_.workers) {
    for (const auto& [signal, notice] : worker.notices) act(action::ReadSignalFate{id, signal});
    if (!has_passed(worker.kill_at, now_)) continue;
    worker.kill_at.reset();
    if (worker.keeps_state()) {
      kill_hanging(id, worker,
                   concat("it closed its connection to the launcher and did not end within ",
                          kTimeToEnd.count(), " ms"));
    } else {
      act(action::SignalGroup{id, SIGKILL});
    }
  }
  const auto deadline = state_.stop.deadline();
  if (deadline && deadline->instant() <= now_) stop(state_.stop.on_deadline(now_));
}

void Stepper::end_generation_if_over() {
  const AgentView& view = state_.view;
  const bool is_told = next_action(view, state_.generation, 0) == AgentAction::kStopWorkers;
  const bool at_once = is_told && view.end == GenerationEnd::kStoppedAtOnce;
  if (is_stopping()) return at_once ? stop(state_.stop.on_kill(now_)) : void();
  if (is_between()) {
    if (!view.ended() && state_.phase != SupervisionPhase::kPreempted) return;
  } else {
    if (is_told && view.is_hang) search_hang();
    const bool is_over =
        state_.phase == SupervisionPhase::kOver || is_told || has_passed(state_.cause_by, now_);
    if (!is_over) return;
    if (!view.ended() && (waits_for_hanging(state_, now_) || keep_workers())) return;
  }
  stop(at_once ? state_.stop.on_kill(now_) : state_.stop.on_failure(now_));
}

// Workers that are only starting have nothing to keep, and would wait for ranks that do not come.
bool Stepper::keep_workers() {
  const auto is_done = [](const Worker& worker) { return worker.state == State::kDone; };
  const auto ended_well = [](const WorkerExit& exit) { return !exit.failed(); };
  if (!any_kept(state_) || any_worker(state_, is_done) ||
      std::ranges::any_of(state_.outcome.exits, ended_well)) {
    return false;
  }
  for (auto& [id, worker] : state_.workers) {
    if (!worker.is_alive()) {
      act(action::SignalGroup{id, SIGKILL});
    } else if (!worker.is_kept() && !worker.is_standby() && worker.state != State::kDismissed) {
      dismiss(id, worker, milliseconds(0));
    }
  }
  ask_to_leave();
  state_.phase = SupervisionPhase::kBetween;
  state_.cause_by.reset();
  state_.search = HangSearch::kDone;
  state_.hanging_end_by.reset();
  state_.old_exits = std::ssize(state_.outcome.exits);
  act(action::EndGeneration{state_.outcome});
  return true;
}

void Stepper::ask_for_generation() {
  if (state_.phase != SupervisionPhase::kBetween || !any_kept(state_)) return;
  action::AskForGeneration ask;
  for (const auto& [id, worker] : state_.workers) {
    if (worker.is_kept()) ask.kept.insert(worker.exit.local_rank);
    if (worker.is_ready_standby()) ++ask.standbys;
  }
  act(std::move(ask));
}

// Once it is known that the program waits for a place: another would train on its own.
void Stepper::start_standby() {
  if (state_.options.standby_workers == 0 || state_.phase != SupervisionPhase::kRunning ||
      !any_kept(state_) || state_.failed_standbys >= kMostFailedStandbys) {
    return;
  }
  const auto count = std::ranges::count_if(state_.workers, [](const auto& entry) {
    return entry.second.is_alive() && entry.second.is_standby();
  });
  if (count >= state_.options.standby_workers) {
    state_.standby_at.reset();
  } else if (!state_.standby_at) {
    state_.standby_at = now_ + kOthersFirst;
  } else if (*state_.standby_at <= now_) {
    state_.standby_at.reset();
    start(/*local_rank=*/-1, /*rank=*/-1);
  }
}

void Stepper::dismiss_standbys() {
  for (auto& [id, worker] : state_.workers) {
    if (worker.is_standby() && worker.is_alive() && worker.state != State::kDismissed) {
      dismiss(id, worker, milliseconds(0));
    }
  }
}

void Stepper::finish() {
  const bool is_alive = any_alive(state_);
  const bool only_killed =
      is_alive && !is_stopping() && std::ranges::all_of(state_.workers, [](const auto& entry) {
        return !entry.second.is_alive() || is_killed(entry.second);
      });
  if (!only_killed) {
    state_.killed_end_by.reset();
  } else if (!state_.killed_end_by) {
    state_.killed_end_by = now_ + StopSequence::kKilledTimeout;
  }
  const bool gives_up = state_.stop.given_up() || has_passed(state_.killed_end_by, now_);
  if (!gives_up && is_alive) return;
  if (!gives_up && is_stopping() && !state_.workers.empty()) {
    // A shell starts background processes with SIGINT ignored, so that SIGINT alone leaves them.
    // One SIGTERM and no more: a second means to many programs that saving their state must end.
    if (!state_.sent_sigterm && !state_.stop.killed()) stop(SIGTERM);
    return;
  }
  if (gives_up) {
    for (const auto& [id, worker] : state_.workers) {
      if (is_stopping() || worker.is_alive()) state_.outcome.stuck.push_back(worker.exit);
    }
  }
  state_.phase = SupervisionPhase::kFinished;
  act(action::Finish{});
}

}  // namespace

const char* name_of(WorkerState state) {
  switch (state) {
    case State::kStarting:
      return "starting";
    case State::kRunning:
      return "running";
    case State::kLeft:
      return "left";
    case State::kRecovering:
      return "recovering";
    case State::kWarmingUp:
      return "warming up";
    case State::kStandby:
      return "standby";
    case State::kDone:
      return "done";
    case State::kHanging:
      return "hanging";
    case State::kDismissed:
      return "dismissed";
    case State::kStopping:
      return "stopping";
    case State::kEnded:
      return "ended";
  }
  return "";
}

const char* name_of(SupervisionPhase phase) {
  switch (phase) {
    case SupervisionPhase::kBeginning:
      return "beginning";
    case SupervisionPhase::kRunning:
      return "running";
    case SupervisionPhase::kOver:
      return "over";
    case SupervisionPhase::kBetween:
      return "between";
    case SupervisionPhase::kPreempted:
      return "preempted";
    case SupervisionPhase::kStopping:
      return "stopping";
    case SupervisionPhase::kFinished:
      return "finished";
  }
  return "";
}

std::vector<SupervisionAction> step(SupervisionState& state, const SupervisionEvent& event,
                                    SupervisionState::Time now) {
  return Stepper(state, now).run(event);
}

std::optional<Time> next_deadline(const SupervisionState& state, Time now) {
  std::optional<Time> next;
  const auto at = [&](const std::optional<Time>& time) {
    if (time && (!next || *time < *next)) next = time;
  };
  // What has passed is decided, or waits for something else.
  const auto at_if_later = [&](const std::optional<Time>& time) {
    if (time && *time > now) at(time);
  };
  if (const auto deadline = state.stop.deadline()) at(deadline->instant());
  const bool is_stopping = state.stop.started();
  if (!is_stopping) {
    at_if_later(state.cause_by);
    at_if_later(state.hanging_end_by);
    at_if_later(state.killed_end_by);
    at_if_later(state.standby_at);
    if (state.phase == SupervisionPhase::kBetween) at(now + kAskAgain);
  }
  bool any_leaves = false;
  for (const auto& [id, worker] : state.workers) {
    if (!worker.notices.empty()) at(now + kLookAgain);
    at(worker.kill_at);
    if (is_stopping || !worker.is_kept()) continue;
    at(worker.joins_by);
    if (state.search != HangSearch::kLeaving || worker.state == State::kLeft) continue;
    at(worker.leaves_by);
    any_leaves = any_leaves || worker.leaves_by;
  }
  // No worker that could leave is left: the search has ended.
  if (!is_stopping && state.search == HangSearch::kLeaving && !any_leaves) at(now);
  return next;
}

}  // namespace lockstep::inline internal
