// Decisions: when a generation is over, what comes next, and the end.
#include "launcher/supervise/supervision.h"

#include <algorithm>
#include <csignal>

#include "launcher/supervise/supervision_step.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

// Delay of a standby worker: the workers that train need the processors first.
constexpr std::chrono::milliseconds kOthersFirst{500};
// How often the next generation is asked for if nothing else happens.
constexpr std::chrono::milliseconds kAskAgain{1'000};
// How often it is checked whether a worker handles a signal that is to be forwarded.
constexpr std::chrono::milliseconds kLookAgain{50};

// Only a process that is stuck in the kernel is still there after a while.
bool is_killed(const SupervisedWorker& worker) {
  return worker.state == WorkerState::kHanging ||
         (worker.state == WorkerState::kDismissed && !worker.kill_at);
}

bool any_kept(const SupervisionState& state) {
  return any_worker(state, [](const SupervisedWorker& worker) { return worker.is_kept(); });
}

bool any_alive(const SupervisionState& state) {
  return any_worker(state, [](const SupervisedWorker& worker) { return worker.is_alive(); });
}

// One that does not die is no reason to keep standby workers for.
bool any_rank_runs(const SupervisionState& state, SupervisionState::Time now) {
  const bool hanging_should_be_gone =
      state.phase == SupervisionPhase::kBetween && has_passed(state.hanging_end_by, now);
  return any_worker(state, [&](const SupervisedWorker& worker) {
    if (!worker.is_alive() || worker.is_standby()) return false;
    return !is_killed(worker) || (worker.state == WorkerState::kHanging && !hanging_should_be_gone);
  });
}

bool waits_for_hanging(const SupervisionState& state, SupervisionState::Time now) {
  if (state.search == HangSearch::kExplaining || state.search == HangSearch::kLeaving) return true;
  return state.hanging_end_by && *state.hanging_end_by > now &&
         any_worker(state, [](const SupervisedWorker& worker) {
           return worker.state == WorkerState::kHanging;
         });
}

}  // namespace

void SupervisionStep::on(const happened::DecisionDue&) {
  if (state_.phase == SupervisionPhase::kBeginning || state_.phase == SupervisionPhase::kFinished)
    return;
  keep_deadlines();
  if (!is_stopping()) {
    kill_late_to_join();
    kill_late_to_leave();
  }
  kill_hanging();
  end_generation_if_over();
  ask_for_generation();
  start_standby();
  // A job that ends well may leave processes in the background; one that is stopped may not.
  if (!any_rank_runs(state_, now_)) dismiss_standbys();
  finish();
}

void SupervisionStep::keep_deadlines() {
  for (auto& [id, worker] : state_.workers) {
    for (const auto& [signal, notice] : worker.notices) act(action::ReadSignalFate{id, signal});
    if (!has_passed(worker.kill_at, now_)) continue;
    worker.kill_at.reset();
    if (worker.state == State::kDone) {
      dismiss(id, worker, milliseconds(0));
    } else if (worker.keeps_state()) {
      note_hanging(id, worker,
                   concat("it closed its connection to the launcher and did not end within ",
                          kTimeToEnd.count(), " ms"));
    } else {
      act(action::SignalGroup{id, SIGKILL});
    }
  }
  const auto deadline = state_.stop.deadline();
  if (deadline && deadline->instant() <= now_) stop(state_.stop.on_deadline(now_));
}

void SupervisionStep::end_generation_if_over() {
  const AgentView& view = state_.view;
  const bool is_told = next_action(view, state_.generation, 0) == AgentAction::kStopWorkers;
  const bool at_once = is_told && view.end == GenerationEnd::kStoppedAtOnce;
  const bool is_wanted_end =
      (is_told && is_wanted(view.end)) || state_.phase == SupervisionPhase::kPreempted;
  if (is_stopping()) {
    if (at_once) return stop(state_.stop.on_kill(now_));
    return is_wanted_end && any_done(state_) ? stop(SIGTERM) : void();
  }
  if (is_between()) {
    if (!view.ended() && state_.phase != SupervisionPhase::kPreempted) return;
  } else {
    if (is_told && view.is_hang) search_hang();
    const bool is_over =
        state_.phase == SupervisionPhase::kOver || is_told || has_passed(state_.cause_by, now_);
    if (!is_over) return;
    if (!view.ended() && (waits_for_hanging(state_, now_) || keep_workers())) return;
  }
  const int signal = at_once ? state_.stop.on_kill(now_) : state_.stop.on_failure(now_);
  stop(signal, /*spares_done=*/!is_wanted_end);
}

// Workers that are only starting have nothing to keep, and would wait for ranks that do not come.
bool SupervisionStep::keep_workers() {
  const auto ended_early = [](const WorkerExit& exit) { return !exit.failed() && !exit.was_done; };
  if (!any_kept(state_) || std::ranges::any_of(state_.outcome.exits, ended_early)) return false;
  std::vector<int> done;
  for (auto& [id, worker] : state_.workers) {
    if (!worker.is_alive()) {
      act(action::SignalGroup{id, SIGKILL});
    } else if (worker.state == State::kDone) {
      // A replacement takes its rank once it has ended, and gets the state from a
      // survivor.
      worker.kill_at = now_ + state_.options.shutdown_timeout;
      done.push_back(worker.exit.rank);
    } else if (!worker.is_kept() && !worker.is_standby() && worker.state != State::kDismissed) {
      dismiss(id, worker, milliseconds(0));
    }
  }
  if (!done.empty()) say_who_ends(done);
  ask_to_leave();
  state_.phase = SupervisionPhase::kBetween;
  state_.cause_by.reset();
  state_.search = HangSearch::kDone;
  state_.hanging_end_by.reset();
  state_.old_exits = std::ssize(state_.outcome.exits);
  act(action::EndGeneration{state_.outcome});
  return true;
}

void SupervisionStep::ask_for_generation() {
  if (state_.phase != SupervisionPhase::kBetween || !any_kept(state_)) return;
  if (any_done(state_)) return;
  action::AskForGeneration ask;
  for (const auto& [id, worker] : state_.workers) {
    if (worker.is_kept()) ask.kept.insert(worker.exit.local_rank);
    if (worker.is_ready_standby()) ++ask.standbys;
  }
  act(std::move(ask));
}

// Once it is known that the program waits for a place: another would train on its own.
void SupervisionStep::start_standby() {
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

void SupervisionStep::dismiss_standbys() {
  for (auto& [id, worker] : state_.workers) {
    if (worker.is_standby() && worker.is_alive() && worker.state != State::kDismissed) {
      dismiss(id, worker, milliseconds(0));
    }
  }
}

void SupervisionStep::finish() {
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
  const bool stops_waiting = state_.stop.given_up() || has_passed(state_.killed_end_by, now_);
  if (!stops_waiting && is_alive) return;
  if (!stops_waiting && is_stopping() && !state_.workers.empty()) {
    // A shell starts background processes with SIGINT ignored, so that SIGINT alone leaves them.
    // One SIGTERM and no more: a second means to many programs that saving their state must end.
    if (!state_.sent_sigterm && !state_.stop.killed()) stop(SIGTERM);
    return;
  }
  if (stops_waiting) {
    for (const auto& [id, worker] : state_.workers) {
      if (is_stopping() || worker.is_alive()) state_.outcome.stuck.push_back(worker.exit);
    }
  }
  state_.phase = SupervisionPhase::kFinished;
  act(action::Finish{});
}

// The machine.

std::vector<SupervisionAction> step(SupervisionState& state, const SupervisionEvent& event,
                                    SupervisionState::Time now) {
  return SupervisionStep(state, now).run(event);
}

std::optional<SupervisionState::Time> next_deadline(const SupervisionState& state,
                                                    SupervisionState::Time now) {
  std::optional<SupervisionState::Time> next;
  const auto at = [&](const std::optional<SupervisionState::Time>& time) {
    if (time && (!next || *time < *next)) next = time;
  };
  // What has passed is decided, or waits for something else.
  const auto at_if_later = [&](const std::optional<SupervisionState::Time>& time) {
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
    if (state.search != HangSearch::kLeaving || worker.state == WorkerState::kLeft) continue;
    at(worker.leaves_by);
    any_leaves = any_leaves || worker.leaves_by;
  }
  // No worker that could leave is left: the search has ended.
  if (!is_stopping && state.search == HangSearch::kLeaving && !any_leaves) at(now);
  return next;
}

}  // namespace lockstep::inline internal
