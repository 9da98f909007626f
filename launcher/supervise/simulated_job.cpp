#include "launcher/supervise/simulated_job.h"

#include <algorithm>

#include "launcher/supervise/simulated_parts.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {

using std::chrono::microseconds;
using std::chrono::milliseconds;

SimulatedJob::SimulatedJob(const SimulatedOptions& options, Coverage* coverage)
    : options_(options),
      coverage_(coverage),
      random_(options.seed),
      service_(options.rules, RendezvousTimeouts{}) {
  for (int i = 0; i < options.machines; ++i) add_machine();
}

SimulatedJob::~SimulatedJob() = default;

microseconds SimulatedJob::delay(int least_ms, int most_ms) {
  if (!options_.is_random) return milliseconds(least_ms);
  return microseconds(draw(least_ms * 1'000, most_ms * 1'000));
}

void SimulatedJob::add_machine() {
  const int number = static_cast<int>(machines_.size());
  const std::string name = concat("machine-", number);
  const JobAgentOptions how{.is_on_one_machine = options_.rules.max_nodes == 1,
                            .max_restarts = options_.rules.max_restarts};
  machines_.push_back(std::make_unique<Machine>(
      number, how,
      RendezvousNode{
          .id = name, .name = name, .host = name, .worker_count = options_.workers_per_machine}));
  publish_agent(*machines_.back());
  wake(*machines_.back(), microseconds(0));
}

bool SimulatedJob::has_ended() const {
  return std::ranges::all_of(
      machines_, [](const auto& machine) { return machine->has_ended || machine->is_lost; });
}

bool SimulatedJob::all_ranks_train() const {
  const RendezvousState& state = service_.state();
  if (state.phase != RendezvousState::Phase::kRunning) return false;
  const auto group = groups_.find(state.generation);
  return group != groups_.end() && group->second.is_complete && !group->second.is_broken;
}

bool SimulatedJob::run_until(Time end, const std::function<bool()>& condition) {
  const auto is_met = [&] { return condition ? condition() : has_ended(); };
  while (violation_.empty() && !is_met()) {
    if (!clock_.run_next(end)) return false;
    for (const auto& machine : machines_) {
      if (!options_.is_random) break;
      if (machine->must_end_by && !machine->has_ended && !machine->is_lost &&
          clock_.now() > *machine->must_end_by) {
        violate(concat("a stop of ", machine->id(), " does not end"));
      }
    }
  }
  return is_met();
}

std::string SimulatedJob::describe() const {
  const RendezvousState& state = service_.state();
  std::string text = concat("rendezvous: phase ", static_cast<int>(state.phase), ", generation ",
                            state.generation, ", ", state.cause, "\n");
  for (const auto& machine : machines_) {
    text += concat(
        machine->id(), machine->is_lost ? ", lost" : "", machine->has_ended ? ", ended" : "",
        ", report ", static_cast<int>(machine->agent.report().status), ", generation ",
        machine->agent.generation(),
        machine->supervision ? concat(", ", name_of(machine->supervision->phase)) : "", "\n");
    if (!machine->supervision) continue;
    for (const auto& [id, worker] : machine->supervision->workers) {
      const Process& process = *machine->processes.at(id);
      text += concat("  worker ", id, ": ", name_of(worker.state), ", rank ", worker.exit.rank,
                     worker.link_is_open ? "" : ", link closed", "; does ",
                     static_cast<int>(process.doing), ", generation ", process.generation,
                     process.hangs ? ", hangs" : "", process.is_stuck ? ", stuck" : "", "\n");
    }
  }
  return text;
}

SimulatedJob::Messages SimulatedJob::messages() const {
  Messages all;
  for (const auto& machine : machines_) {
    all.to_server += machine->messages_to_server;
    all.from_server += machine->messages_from_server;
    all.most_to_one_machine = std::max({all.most_to_one_machine, machine->messages_from_server});
  }
  return all;
}

void SimulatedJob::forget_messages() {
  for (const auto& machine : machines_) {
    machine->messages_to_server = machine->messages_from_server = 0;
  }
}

}  // namespace lockstep::inline internal
