// Workers: their places in a generation, their messages, and their ends.
#include <algorithm>

#include "diagnose/verdict/worker_text.h"
#include "launcher/supervise/supervision_step.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

// A worker that sees another's end is faster than the system, which takes that one's memory apart
// before it says so.
constexpr std::chrono::milliseconds kCauseComes{1'000};

bool is_told_to_stop(const SupervisedWorker& worker) {
  return worker.state == WorkerState::kStopping || worker.state == WorkerState::kDismissed;
}

}  // namespace

// Generations.

void SupervisionStep::on(const happened::GenerationReady& event) {
  if (is_stopping() || state_.phase == SupervisionPhase::kFinished) return;
  state_.phase = SupervisionPhase::kRunning;
  const std::uint64_t ended = std::exchange(state_.generation, event.generation);
  const int count_before = std::exchange(state_.worker_count, event.worker_count);
  state_.search = HangSearch::kNone;
  state_.hang_explained_until.reset();
  state_.late_worker.reset();
  state_.cause_by.reset();
  state_.hanging_end_by.reset();
  state_.standby_at.reset();  // The workers that are started now need the processors first.
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
      act(action::SendLeaveGroup{id, event.generation});  // It is not preempted: others go on.
      dismiss(id, worker, state_.options.shutdown_timeout);
    } else {
      taken.insert(local_rank);
      const bool has_left = worker.state == State::kLeft;
      if (!has_left && worker.exit.silent_since == 0) worker.exit.silent_since = ended;
      place(id, worker, local_rank, event.first_rank + local_rank);
    }
  }
  for (int local_rank = 0; local_rank < event.worker_count; ++local_rank) {
    if (taken.contains(local_rank)) continue;
    fill(local_rank, event.first_rank + local_rank,
         /*is_replacement=*/!taken.empty() && local_rank < count_before);
  }
}

void SupervisionStep::fill(int local_rank, int rank, bool is_replacement) {
  const auto standby = std::ranges::find_if(
      state_.workers, [](const auto& entry) { return entry.second.is_ready_standby(); });
  if (standby == state_.workers.end()) {
    start(local_rank, rank);
    state_.workers.at(state_.last_worker).is_replacement = is_replacement;
  } else {
    standby->second.is_replacement = is_replacement;
    place(standby->first, standby->second, local_rank, rank);
  }
}

void SupervisionStep::start(int local_rank, int rank) {
  const WorkerId id = ++state_.last_worker;
  Worker& worker = state_.workers[id];
  if (rank < 0) worker.state = State::kWarmingUp;
  worker.exit.rank = rank;
  worker.exit.local_rank = local_rank;
  act(action::StartWorker{id, local_rank});
}

void SupervisionStep::on(const happened::WorkerStarted& event) {
  Worker* const worker = find(event.worker);
  if (worker == nullptr) return;
  worker->exit.pid = event.pid;
  worker->exit.directory = event.directory;
}

// One that has yet to answer for an earlier place has until then for this one, too.
void SupervisionStep::place(WorkerId id, Worker& worker, int local_rank, int rank) {
  if (!worker.joins_by) worker.joins_by = now_ + worker.reads_within + kTimeToLeave;
  const State before = std::exchange(worker.state, State::kRecovering);
  worker.exit.rank = rank;
  worker.exit.local_rank = local_rank;
  worker.exit.deadline_expired = false;
  worker.deadline_expired_at.reset();
  worker.exit.hangs_in.clear();
  worker.is_in_collective = false;
  worker.leaves_by.reset();
  act(action::SendRank{id, local_rank, /*is_first=*/before == State::kStandby});
}

// It ended, or hangs, since before this generation: no reason for another.
void SupervisionStep::on(const happened::RankNotRead& event) {
  Worker* const worker = find(event.worker);
  if (worker == nullptr || worker->state != State::kRecovering) return;
  dismiss(event.worker, *worker, milliseconds(0));
  replace(worker->exit, "did not read its rank in");
}

void SupervisionStep::dismiss(WorkerId id, Worker& worker, milliseconds patience) {
  worker.kill_at.reset();
  if (worker.is_alive()) worker.state = State::kDismissed;
  if (patience > milliseconds(0)) worker.kill_at = now_ + patience;
  act(action::SignalGroup{id, patience > milliseconds(0) ? SIGTERM : SIGKILL});
}

// Messages.

void SupervisionStep::on(const happened::MessageReceived& event) {
  Worker* const worker = find(event.worker);
  if (worker == nullptr) return;
  std::visit([&](const auto& message) { receive(event.worker, *worker, message); }, event.message);
}

void SupervisionStep::receive(WorkerId, Worker& worker, const KeepsState& message) {
  worker.reads_within = message.reads_within;
  if (worker.state == State::kStarting) {
    worker.state = State::kRunning;
    say_replacements();
  }
  if (worker.state != State::kWarmingUp) return;
  worker.state = State::kStandby;
  state_.failed_standbys = 0;
}

void SupervisionStep::receive(WorkerId id, Worker& worker, const TrainingDone& message) {
  const bool has_rank = worker.keeps_state() || worker.state == State::kStarting ||
                        worker.state == State::kUnprotected;
  if (!has_rank) return;
  if (!message.is_complete) {
    worker.state = State::kUnprotected;
    if (is_between()) dismiss(id, worker, state_.options.shutdown_timeout);
    return;
  }
  worker.state = State::kDone;
  if (is_between()) worker.kill_at = now_ + state_.options.shutdown_timeout;
}

void SupervisionStep::receive(WorkerId, Worker& worker, const TookRank& message) {
  if (worker.state != State::kRecovering || message.generation != state_.generation) return;
  worker.state = State::kRunning;
  worker.joins_by.reset();
  worker.exit.silent_since = 0;
  say_replacements();
}

void SupervisionStep::receive(WorkerId, Worker& worker, const LeftGroup& message) {
  if (message.generation != state_.generation || is_between() || is_stopping()) return;
  if (worker.state == State::kRunning || worker.state == State::kRecovering) {
    worker.state = State::kLeft;  // So it has read its place.
    worker.joins_by.reset();
    worker.exit.silent_since = 0;
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

void SupervisionStep::receive(WorkerId id, Worker& worker, const DeadlineExpired& message) {
  if (is_between() || is_stopping()) return;
  worker.exit.deadline_expired = true;
  worker.deadline_expired_at = now_;
  explain_hang(AwaitedCall{.operation = message.operation,
                           .group = message.group,
                           .sequence = message.sequence,
                           .waited = message.waited});
  act(action::ReleaseWaitingWorker{id});
}

// Nobody can place it any more, and no other may be left that the launcher waits with.
void SupervisionStep::on(const happened::LinkClosed& event) {
  Worker* const worker = find(event.worker);
  if (worker == nullptr) return;
  worker->link_is_open = false;
  if (state_.phase == SupervisionPhase::kBetween && worker->keeps_state()) {
    worker->kill_at = now_ + kTimeToEnd;
  }
}

// Ends.

void SupervisionStep::on(const happened::WorkerEnded& event) {
  Worker* const found = find(event.worker);
  if (found == nullptr || !found->is_alive()) return;
  Worker& worker = *found;
  const WorkerExit known = std::exchange(worker.exit, event.exit);
  WorkerExit& exit = worker.exit;
  exit.rank = known.rank;
  exit.local_rank = known.local_rank;
  exit.pid = known.pid;
  exit.directory = known.directory;
  exit.cannot_recover = known.cannot_recover;
  exit.late_for = known.late_for;
  exit.hangs_in = known.hangs_in;
  exit.silent_since = known.silent_since;
  exit.deadline_expired = known.deadline_expired;
  exit.late_rank = late_rank(event.worker, worker);
  exit.told_to_stop = is_told_to_stop(worker);
  const bool has_state = worker.keeps_state() || worker.state == State::kHanging;
  exit.was_done = worker.state == State::kDone;
  exit.left_early = has_state && exit.signal == 0 && exit.exit_code == 0;
  if (exit.signal == 0 || exit.told_to_stop) exit.collectives.clear();
  const State before = std::exchange(worker.state, State::kEnded);
  worker.link_is_open = false;
  worker.notices.clear();
  if (before == State::kWarmingUp) note_failed_standby(exit);
  act(action::ShowEnd{exit});
  if (before == State::kDismissed || worker.is_standby()) return;
  if (is_replaceable(exit, before)) {
    replace(exit, "ended before it joined");
  } else {
    count_end(worker);
  }
}

// No other rank has met it in this generation.
bool SupervisionStep::is_replaceable(const WorkerExit& exit, State before) const {
  return before == State::kRecovering && state_.phase == SupervisionPhase::kRunning &&
         !exit.cannot_recover && exit.exit_code != kExitPreempted;
}

void SupervisionStep::replace(const WorkerExit& exit, const std::string& why) {
  act(action::Say{concat(describe_worker(exit), " ", why, " generation ", state_.generation,
                         "; a replacement takes its rank")});
  fill(exit.local_rank, exit.rank, /*is_replacement=*/true);
}

// Once every rank of this machine has joined the generation.
void SupervisionStep::say_replacements() {
  const auto has_yet_to_join = [](const Worker& worker) {
    return !worker.is_standby() &&
           (worker.state == State::kStarting || worker.state == State::kRecovering ||
            worker.state == State::kLeft);
  };
  if (state_.phase != SupervisionPhase::kRunning || any_worker(state_, has_yet_to_join)) return;
  std::vector<int> ranks;
  for (auto& [id, worker] : state_.workers) {
    if (!worker.is_alive() || worker.state == State::kDismissed) continue;
    if (std::exchange(worker.is_replacement, false)) ranks.push_back(worker.exit.rank);
  }
  if (ranks.empty()) return;
  const char* const verb = ranks.size() == 1 ? " was" : " were";
  act(action::Say{concat(rank_list(ranks), verb, " replaced; training continues")});
}

void SupervisionStep::count_end(Worker& worker) {
  const WorkerExit& exit = worker.exit;
  act(action::ReportEnd{exit});
  state_.outcome.exits.push_back(exit);
  if (state_.phase == SupervisionPhase::kRunning && exit.failed())
    state_.phase = SupervisionPhase::kOver;
  if (state_.phase == SupervisionPhase::kBetween) note_end_between(exit);
}

// A failure here is not reported as a fault: the next generation replaces the worker anyway.
void SupervisionStep::note_end_between(const WorkerExit& exit) {
  if (!exit.failed()) return;
  if (exit.exit_code == kExitPreempted) {
    state_.phase = SupervisionPhase::kPreempted;
    forget_old_exits();
    // What failed since then would have been replaced.
    std::erase_if(state_.outcome.exits,
                  [](const WorkerExit& other) { return other.exit_code != kExitPreempted; });
    return;
  }
  act(action::Say{concat(describe_worker(exit), " ", describe_failure(exit),
                         " while it waited for the next generation; a replacement takes its "
                         "rank")});
}

void SupervisionStep::forget_old_exits() {
  auto& exits = state_.outcome.exits;
  exits.erase(exits.begin(), exits.begin() + std::exchange(state_.old_exits, 0));
  state_.outcome.lost.clear();
}

void SupervisionStep::note_failed_standby(const WorkerExit& exit) {
  if (++state_.failed_standbys < kMostFailedStandbys) return;
  act(action::Say{concat("no more standby workers: the last ", kMostFailedStandbys,
                         " ended before they were ready (", describe_end(exit), ")")});
}

void SupervisionStep::on(const happened::GroupEmptied& event) {
  const Worker* const worker = find(event.worker);
  if (worker != nullptr && !worker->is_alive()) state_.workers.erase(event.worker);
}

// If no other rank waits for it, as after the last collective, nobody else says so.
void SupervisionStep::on(const happened::WorkerSuspended& event) {
  const Worker* const worker = find(event.worker);
  if (worker == nullptr || !worker->is_alive() || is_told_to_stop(*worker)) return;
  act(action::Say{concat(describe_worker(worker->exit), " is stopped by ",
                         signal_name(event.signal), "; `kill -CONT ", worker->exit.pid,
                         "` continues it")});
}

}  // namespace lockstep::inline internal
