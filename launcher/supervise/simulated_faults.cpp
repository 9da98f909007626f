// The faults that a simulated job can have.
#include <algorithm>
#include <csignal>
#include <utility>

#include "launcher/supervise/simulated_job.h"
#include "launcher/supervise/simulated_parts.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {

using std::chrono::seconds;

std::vector<SimulatedJob::Process*> SimulatedJob::running_processes() {
  std::vector<Process*> running;
  for (const auto& process : processes_) {
    const Machine& machine = *process->machine;
    if (!process->is_active() || machine.is_lost || machine.has_ended) continue;
    running.push_back(process.get());
  }
  return running;
}

void SimulatedJob::kill_worker(int machine, int local_rank) {
  Machine& chosen = *machines_.at(static_cast<std::size_t>(machine));
  for (const auto& [id, process] : chosen.processes) {
    const SupervisedWorker& worker = chosen.supervision->workers.at(id);
    if (worker.exit.local_rank != local_rank || !process->is_active()) continue;
    return end_process(*process, {.signal = SIGKILL}, true);
  }
}

void SimulatedJob::inject_any_fault() {
  const auto running = running_processes();
  Machine& machine =
      *machines_[static_cast<std::size_t>(draw(0, static_cast<int>(machines_.size()) - 1))];
  if (draw(1, 5) <= 2) return inject_fault_of_machine(machine);
  if (running.empty()) return;
  inject_fault_of_worker(
      *running[static_cast<std::size_t>(draw(0, static_cast<int>(running.size()) - 1))]);
}

void SimulatedJob::inject_fault_of_worker(Process& process) {
  const std::string error = concat("ValueError: bad ", draw(1, 9));
  switch (draw(1, 17)) {
    case 1:
    case 2:
    case 3:
    case 4:
      return end_process(process, {.signal = SIGKILL}, true);
    case 5:
    case 6:
      return end_process(process, {.exit_code = 3, .error_message = error}, true);
    case 7:
    case 8:
    case 9:
      return hang(process);
    case 10:  // Without a reason.
      if (!process.is_resilient) return;
      note_fault(process);
      return leave_group(process, LeftGroup::Cause::kError);
    case 11:  // It ends well in the middle of the training.
      if (process.doing != Process::Doing::kTrains) return;
      return end_process(process, {.exit_code = 0}, false);
    case 12:  // It closes its connection and goes on, or does not end.
      if (!process.link_is_open) return;
      note_fault(process);
      process.link_is_open = false;
      post(*process.machine, happened::LinkClosed{process.worker});
      if (happens_once_in(2)) hang(process);
      return;
    case 13:
      say(process, CannotRecover{});
      return end_process(process, {.exit_code = 1, .error_message = error}, true);
    case 14:
      return post(*process.machine, happened::WorkerSuspended{process.worker, SIGSTOP});
    case 15:  // A message of an earlier generation comes late.
      if (process.generation < 2) return;
      say(process, TookRank{.generation = process.generation - 1});
      return say(process, LeftGroup{.generation = process.generation - 1, .text = "late"});
    case 16:  // It trains on without recovery.
      if (process.doing != Process::Doing::kTrains) return;
      if (std::exchange(process.is_resilient, false)) {
        say(process, TrainingDone{.is_complete = false});
      }
      return;
    default:
      return;
  }
}

void SimulatedJob::inject_fault_of_machine(Machine& machine) {
  if (!machine.can_act()) return;
  const bool supervises = machine.supervision.has_value();
  const auto note_machine_fault = [&] {
    if (machine.agent.generation() > 0) faulty_.insert(machine.agent.generation());
  };
  switch (draw(1, 8)) {
    case 1:
      if (!supervises || !happens_once_in(2)) return;
      machine.must_end_by = clock_.now() + options_.supervision.shutdown_timeout + seconds(15);
      note_machine_fault();
      if (happens_once_in(2)) return post(machine, happened::StopSignal{SIGTERM});
      post(machine, happened::StopSignal{SIGINT});
      if (!happens_once_in(2)) return;
      machine.must_kill_at_once = true;
      machine.must_end_by = clock_.now() + seconds(14);
      return post(machine, happened::StopSignal{SIGINT});
    case 2:
      if (!supervises || !happens_once_in(4)) return;
      note_machine_fault();
      return post(machine, happened::NoticeSignal{SIGUSR1});
    case 3:
    case 4: {
      const int count = draw(1, 3);
      if (!machine.agent.scale_objection(machine.view, count).empty()) return;
      machine.agent.scale(count, "root");
      note_machine_fault();
      return publish_agent(machine);
    }
    case 5:
      if (!happens_once_in(16)) return;
      machine.agent.request_stop(machine.view, {.by = "root", .at_once = happens_once_in(2)});
      return publish_agent(machine);
    case 6:
      if (options_.rules.max_nodes > 1 && machines_.size() < 6) add_machine();
      return;
    case 7:
      if (happens_once_in(4) && options_.rules.max_nodes > 1) lose(machine);
      return;
    case 8:
      if (!supervises || !happens_once_in(4)) return;
      machine.is_cut_off = true;
      machine.must_end_by = clock_.now() + options_.supervision.shutdown_timeout + seconds(15);
      note_machine_fault();
      return post(machine, happened::RendezvousLost{});
    default:
      return;
  }
}

// With all that runs there.
void SimulatedJob::lose(Machine& machine) {
  machine.is_lost = true;
  for (const auto& [id, worker] : machine.processes) {
    if (!worker->is_alive()) continue;
    note_fault(*worker);
    worker->doing = Process::Doing::kGone;
    break_group(worker->generation);
  }
  service_.closed(machine.id(), clock_.now());
  tick_service();
}

bool SimulatedJob::any_waits_in(std::uint64_t generation) {
  return std::ranges::any_of(groups_[generation].members, [&](const auto& member) {
    const Process& process = *member.second;
    return process.is_active() && process.generation == generation;
  });
}

void SimulatedJob::calm_down() {
  // For which no other waits, the user does.
  clock_.after(seconds(60), [this] {
    for (const auto& process : processes_) {
      const bool nobody_waits =
          !process->is_resilient || process->doing == Process::Doing::kBegins ||
          process->doing == Process::Doing::kWarmsUp || process->doing == Process::Doing::kIsDone ||
          !any_waits_in(process->generation);
      if (process->hangs && nobody_waits) end_process(*process, {.signal = SIGKILL}, true);
    }
  });
}

}  // namespace lockstep::inline internal
