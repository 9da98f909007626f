// What must hold in every simulated job.
#include <algorithm>
#include <csignal>

#include "launcher/supervise/simulated_job.h"
#include "launcher/supervise/simulated_parts.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {

using std::chrono::milliseconds;
using std::chrono::seconds;

void SimulatedJob::violate(const std::string& what) {
  if (violation_.empty()) {
    violation_ = concat(
        what, " (at ",
        std::chrono::duration_cast<milliseconds>(clock_.now().time_since_epoch()).count(), " ms)");
  }
}

void SimulatedJob::check_restarts(const RendezvousState& before) {
  const RendezvousState& after = service_.state();
  if (after.restarts > before.restarts && !faulty_.contains(before.generation)) {
    violate(concat("a restart after generation ", before.generation,
                   ", in which nothing failed: ", after.cause));
  }
  if (after.restarts > before.restarts) restarted_after_ = before.generation;
  if (after.restarts > before.restarts + 1) violate("one failure is two restarts");
}

// Of the workers that failed by themselves it is the one that ended first. One that only follows
// another is the cause only if there is no such worker.
void SimulatedJob::check_cause(const Machine& machine, const GenerationOutcome& outcome) {
  const WorkerExit* const cause = first_cause(outcome);
  const Process* first = nullptr;
  const Process* named = nullptr;
  for (const WorkerExit& exit : outcome.exits) {
    const auto found = std::ranges::find_if(
        machine.processes, [&](const auto& entry) { return entry.second->pid == exit.pid; });
    if (found == machine.processes.end()) {
      return violate(concat("an exit of no worker of ", machine.id()));
    }
    const Process* const process = found->second;
    if (cause == &exit) named = process;
    const bool failed_by_itself = process->failed_by_itself || exit.left_early;
    if (!failed_by_itself || exit.told_to_stop) continue;
    if (first == nullptr || process->ended_at < first->ended_at) first = process;
  }
  if (first != nullptr && named != first) {
    violate(concat("worker ", first->worker, " of ", machine.id(), " failed first, and ",
                   named == nullptr ? "none" : concat("worker ", named->worker), " is named"));
  }
}

void SimulatedJob::check_nothing_is_left(const Machine& machine, const SupervisionState& state) {
  for (const auto& [id, process] : machine.processes) {
    const bool is_known_stuck = std::ranges::any_of(
        state.outcome.stuck,
        [&, worker = process](const WorkerExit& exit) { return exit.pid == worker->pid; });
    if (is_known_stuck) continue;
    if (process->is_alive())
      violate(concat("worker ", id, " of ", machine.id(), " is left running"));
    if (state.stop.started() && process->has_children) {
      violate(concat("processes of worker ", id, " are left running"));
    }
  }
}

void SimulatedJob::note_message(Machine& machine, Process& process, const WorkerMessage& message) {
  const SupervisionState& state = *machine.supervision;
  const SupervisedWorker& worker = state.workers.at(process.worker);
  const bool is_over = state.stop.started() || state.phase == SupervisionPhase::kBetween ||
                       state.phase == SupervisionPhase::kPreempted;
  const bool has_rank = worker.keeps_state() || worker.state == WorkerState::kStarting ||
                        worker.state == WorkerState::kUnprotected;
  if (std::holds_alternative<KeepsState>(message)) {
    process.is_known_kept = process.is_known_kept || (has_rank && !process.is_known_to_train_on);
  } else if (std::holds_alternative<CannotRecover>(message)) {
    process.is_known_to_give_up = true;
  } else if (std::holds_alternative<DeadlineExpired>(message)) {
    process.is_known_to_wait = process.is_known_to_wait || !is_over;
  } else if (const auto* const done = std::get_if<TrainingDone>(&message)) {
    if (has_rank && done->is_complete) process.known_done_at = clock_.now();
    if (has_rank) process.is_known_kept = false;
    if (has_rank && !done->is_complete) process.is_known_to_train_on = true;
  } else if (const auto* const left = std::get_if<LeftGroup>(&message)) {
    if (left->generation != state.generation || is_over) return;
    machine.left.push_back({process.worker, *left, clock_.now()});
    if (left->cause == LeftGroup::Cause::kLateRank || machine.left.size() > 1) return;
    // Nothing is searched that would delay the end of the generation.
    clock_.after(seconds(5), [this, &machine, generation = left->generation] {
      if (!machine.supervision || !machine.can_act()) return;
      const SupervisionState& now = *machine.supervision;
      if (now.generation == generation && now.phase == SupervisionPhase::kRunning &&
          now.search == HangSearch::kNone) {
        violate(concat(machine.id(), " goes on with a group that a worker left"));
      }
    });
  }
}

// `before`: the state before the event.
void SimulatedJob::check_event(Machine& machine, const SupervisionEvent& event,
                               const SupervisionState& before) {
  const SupervisionState& state = *machine.supervision;
  if (std::holds_alternative<happened::GenerationReady>(event)) {
    machine.left.clear();
    machine.generation_began = clock_.now();
    machine.hang_explained.reset();
    std::set<int> ranks;
    for (const auto& [id, worker] : state.workers) {
      if (!worker.is_alive() || worker.is_standby() || worker.state == WorkerState::kDismissed)
        continue;
      if (!ranks.insert(worker.exit.local_rank).second) violate("a rank has two workers");
    }
    if (!state.stop.started() && static_cast<int>(ranks.size()) != machine.agent.joined_workers()) {
      violate(concat(machine.id(), " runs ", ranks.size(), " workers"));
    }
  } else if (const auto* const received = std::get_if<happened::MessageReceived>(&event)) {
    const auto* const took = std::get_if<TookRank>(&received->message);
    const auto worker = before.workers.find(received->worker);
    if (took != nullptr && worker != before.workers.end() &&
        took->generation != before.generation &&
        state.workers.at(received->worker).state != worker->second.state) {
      violate("a place in an earlier generation counts");
    }
  } else if (const auto* const closed = std::get_if<happened::LinkClosed>(&event)) {
    const auto worker = state.workers.find(closed->worker);
    if (state.phase == SupervisionPhase::kBetween && worker != state.workers.end() &&
        worker->second.keeps_state()) {
      check_is_gone(*machine.processes.at(closed->worker), milliseconds(10'000),
                    "that closed its connection between generations");
    }
  } else if (const auto* const ended = std::get_if<happened::WorkerEnded>(&event)) {
    check_end_of_worker(machine, before, ended->worker);
  } else if (std::holds_alternative<happened::DecisionDue>(event)) {
    const bool is_late = machine.view.is_hang && machine.view.generation == state.generation;
    if (is_late && before.phase == SupervisionPhase::kRunning && !state.stop.started() &&
        state.search == HangSearch::kNone) {
      violate(concat(machine.id(), " does not search the rank that is late"));
    }
    const auto standbys = std::ranges::count_if(state.workers, [](const auto& entry) {
      return entry.second.is_alive() && entry.second.is_standby();
    });
    if (standbys > state.options.standby_workers) violate("too many standby workers");
    // They start one after the other, and one may hang before it is ready.
    const bool is_starting = std::ranges::any_of(state.workers, [](const auto& entry) {
      return entry.second.is_alive() && entry.second.state == WorkerState::kWarmingUp;
    });
    const bool is_missing =
        !is_starting && standbys < state.options.standby_workers &&
        state.phase == SupervisionPhase::kRunning && state.failed_standbys < 3 &&
        std::ranges::any_of(state.workers,
                            [](const auto& entry) { return entry.second.is_kept(); });
    if (!is_missing) machine.standby_missing.reset();
    if (is_missing && !machine.standby_missing) machine.standby_missing = clock_.now();
    if (is_missing && clock_.now() > *machine.standby_missing + seconds(5)) {
      violate(concat(machine.id(), " has too few standby workers"));
    }
  }
}

void SimulatedJob::check_end_of_worker(const Machine& machine, const SupervisionState& before,
                                       WorkerId id) {
  const auto found = before.workers.find(id);
  if (found == before.workers.end()) return;
  const SupervisedWorker& worker = found->second;
  const SupervisionState& state = *machine.supervision;
  const WorkerExit& exit = state.workers.at(id).exit;
  const Process& process = *machine.processes.at(id);
  const bool is_saved = exit.exit_code == kExitPreempted;
  if (worker.state == WorkerState::kRecovering && !exit.cannot_recover && !is_saved &&
      before.phase == SupervisionPhase::kRunning && state.phase != before.phase) {
    violate("a worker that had yet to join ends the generation");
  }
  if (is_saved && before.phase == SupervisionPhase::kBetween &&
      worker.state != WorkerState::kDismissed &&
      (state.phase != SupervisionPhase::kPreempted ||
       std::ranges::any_of(state.outcome.exits, [](const WorkerExit& other) {
         return other.exit_code != kExitPreempted;
       }))) {
    violate("a preemption between generations is not the end of the job");
  }
  if (process.is_known_to_give_up != exit.cannot_recover) violate("that a worker gives up is lost");
  if (worker.exit.pid != exit.pid || worker.exit.rank != exit.rank) violate("a worker is mistaken");
}

// Of a worker whose end counts.
void SimulatedJob::check_report(const Machine& machine, const WorkerExit& exit) {
  const auto found = std::ranges::find_if(
      machine.processes, [&](const auto& entry) { return entry.second->pid == exit.pid; });
  if (found == machine.processes.end()) return violate("an end of no worker");
  const Process& process = *found->second;
  const std::string who = concat("worker ", process.worker, " of ", machine.id());
  if (process.is_known_kept && !exit.failed() && !exit.told_to_stop)
    violate(concat(who, " ended early, and well"));
  if (process.was_stopped != exit.told_to_stop) violate(concat(who, ": who stopped it?"));
  if (process.is_known_to_wait != exit.deadline_expired && !exit.told_to_stop) {
    violate(concat(who, ": did it wait?"));
  }
  if (process.known_done_at.has_value() != exit.was_done && !exit.told_to_stop) {
    violate(concat(who, ": was it done?"));
  }
  const std::uint64_t generation = machine.supervision->generation;
  const bool has_joined = process.generation == generation;
  if (!has_joined && process.hung_in_group && !exit.late_for.empty() && exit.silent_since == 0) {
    violate(concat(who, " has hung for longer"));
  }
  if (!exit.late_for.empty() && exit.hangs_in.empty()) violate(concat(who, ": where did it hang?"));
}

// A worker that is to stay is not killed, one that is done has its time to end, and others have the
// time to end after SIGTERM.
void SimulatedJob::check_signal(const Machine& machine, Process& process, int signal) {
  const SupervisionState& state = *machine.supervision;
  const bool is_hurried =
      machine.must_kill_at_once || machine.view.end == GenerationEnd::kStoppedAtOnce;
  const bool is_asked_to_stop = machine.must_end_by || is_wanted(machine.view.end) ||
                                state.phase == SupervisionPhase::kPreempted;
  const auto patience = options_.supervision.shutdown_timeout;
  const std::string who = concat("worker ", process.worker, " of ", machine.id());
  if (process.is_active() && process.known_done_at && !is_asked_to_stop &&
      clock_.now() < *process.known_done_at + patience) {
    violate(concat(who, " is signalled though its training is complete"));
  }
  const bool has_had_time =
      process.told_to_end_at && clock_.now() >= *process.told_to_end_at + patience;
  if (signal == SIGKILL && !is_hurried && !has_had_time && patience > milliseconds(0) &&
      process.is_active() && process.is_known_kept && process.link_is_open) {
    violate(concat(who, " is killed without notice"));
  }
  if (signal != SIGKILL && !process.told_to_end_at) process.told_to_end_at = clock_.now();
  if (state.workers.at(process.worker).state == WorkerState::kHanging &&
      state.workers.at(process.worker).exit.late_for.empty()) {
    violate(concat(who, " is killed without a reason"));
  }
  if (state.workers.at(process.worker).state == WorkerState::kDismissed) {
    check_is_gone(process, signal == SIGKILL ? milliseconds(0) : patience, "that is dismissed");
  }
}

// Unless the machine's workers have all been stopped meanwhile, for which there are other limits.
void SimulatedJob::check_is_gone(Process& process, milliseconds within, const std::string& why) {
  const milliseconds slack(6'000);
  clock_.after(within + slack, [this, &process, why] {
    const Machine& machine = *process.machine;
    if (!machine.supervision || !machine.can_act() || !process.is_alive() || process.is_stuck)
      return;
    if (machine.supervision->stop.started()) return;
    if (!machine.supervision->workers.contains(process.worker) ||
        machine.processes.at(process.worker) != &process) {
      return;
    }
    // Of a scaled-out one --shutdown-timeout is the limit.
    const SupervisedWorker& worker = machine.supervision->workers.at(process.worker);
    if (worker.state == WorkerState::kDismissed && worker.kill_at) return;
    violate(concat("worker ", process.worker, " of ", machine.id(), " ", why, " is still there"));
  });
}

void SimulatedJob::check_start(Machine& machine, const action::StartWorker& start) {
  const SupervisionState& state = *machine.supervision;
  const bool any_ready = std::ranges::any_of(
      state.workers, [](const auto& entry) { return entry.second.is_ready_standby(); });
  if (start.local_rank >= 0 && any_ready) violate("a ready standby worker is not used");
  if (start.local_rank >= 0) return;
  machine.standby_missing.reset();
  if (clock_.now() < *machine.generation_began + milliseconds(500)) {
    violate("a standby worker is started before the others");
  }
}

// The outcome of a generation in which a worker left its group.
void SimulatedJob::check_lost_group(const Machine& machine, const GenerationOutcome& outcome) {
  const auto is_own = [](const Machine::Left& left) {
    return left.message.cause != LeftGroup::Cause::kOtherWorker;
  };
  const auto is_late = [](const Machine::Left& left) {
    return left.message.cause == LeftGroup::Cause::kLateRank;
  };
  if (outcome.is_hang != std::ranges::any_of(machine.left, is_late)) violate("is it a hang?");
  if (outcome.lost.empty() != machine.left.empty()) violate("was the group lost?");
  if (machine.left.empty()) return;
  const auto own = std::ranges::find_if(machine.left, is_own);
  const Machine::Left& named = own == machine.left.end() ? machine.left.front() : *own;
  const int pid = machine.processes.at(named.worker)->pid;
  if (outcome.lost.find(concat("pid ", pid, ")")) == std::string::npos) {
    violate(concat("worker ", named.worker, " of ", machine.id(), " left first: ", outcome.lost));
  }
  if (outcome.step != concat(machine.left.front().message.step.value())) violate("which step?");
  const bool any_failed =
      std::ranges::any_of(outcome.exits, [](const WorkerExit& exit) { return exit.failed(); });
  const bool is_told =
      machine.view.generation != machine.supervision->generation || !machine.view.placement;
  const bool has_searched = machine.supervision->search != HangSearch::kNone && outcome.is_hang;
  if (!any_failed && !is_told && !has_searched &&
      clock_.now() < machine.left.front().at + milliseconds(1'000)) {
    violate(concat(machine.id(), " does not wait for the cause to end"));
  }
}

void SimulatedJob::check_kept(const Machine& machine, const action::AskForGeneration& ask) {
  std::set<int> kept;
  int standbys = 0;
  for (const auto& [id, worker] : machine.supervision->workers) {
    const Process& process = *machine.processes.at(id);
    if (!worker.is_alive() || worker.state == WorkerState::kDismissed || !worker.link_is_open)
      continue;
    if (worker.is_standby()) {
      standbys += worker.state == WorkerState::kStandby ? 1 : 0;
    } else if (process.known_done_at) {
      violate("a worker that is done has yet to end");
    } else if (worker.state != WorkerState::kHanging) {
      kept.insert(worker.exit.local_rank);
    }
    const bool is_kept = process.is_known_kept || worker.is_standby();
    if (!is_kept && worker.state != WorkerState::kHanging)
      violate("a worker is left that keeps no state");
  }
  if (kept != ask.kept || standbys != ask.standbys) violate("others are kept than said");
}

void SimulatedJob::check_end(const Machine& machine) {
  const JobAgent& agent = machine.agent;
  const bool is_success = agent.end() == AgentEnd::kSucceeded;
  if (is_success != (agent.exit_code() == 0)) {
    violate(concat(machine.id(), " ends with exit code ", agent.exit_code()));
  }
  if (is_success && service_.state().phase != RendezvousState::Phase::kSucceeded) {
    violate(concat(machine.id(), " ends well, and the job does not"));
  }
}

}  // namespace lockstep::inline internal
