// What must hold in every simulated job.
#include <algorithm>

#include "launcher/supervise/simulated_job.h"
#include "launcher/supervise/simulated_parts.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {

using std::chrono::milliseconds;

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
    if (!process->failed_by_itself || exit.told_to_stop) continue;
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
