// The rendezvous of a simulated job, and the connections of the agents to it.
#include <algorithm>

#include "launcher/supervise/simulated_job.h"
#include "launcher/supervise/simulated_parts.h"

namespace lockstep::inline internal {

using std::chrono::microseconds;

void SimulatedJob::send_report(Machine& machine) {
  if (machine.is_cut_off || machine.is_lost) return;
  ++machine.messages_to_server;
  Time arrival =
      clock_.now() + options_.latency + (options_.is_random ? delay(0, 20) : microseconds(0));
  arrival = machine.last_arrival = std::max(arrival, machine.last_arrival);
  const auto deliver = [this, &machine, report = machine.agent.report()] {
    service_free_at_ = std::max(service_free_at_, clock_.now()) + options_.server_time;
    clock_.at(service_free_at_, [this, &machine, report] { deliver_report(machine, report); });
  };
  const int times = options_.is_random && happens_once_in(10) ? 2 : 1;
  for (int i = 0; i < times; ++i) clock_.at(arrival, deliver);
}

void SimulatedJob::deliver_report(Machine& machine, const AgentReport& report) {
  if (machine.is_lost) return;
  const RendezvousState before = options_.is_random ? service_.state() : RendezvousState{};
  service_.report(report, clock_.now());
  if (options_.is_random) check_restarts(before);
  publish(report.node.id);
  tick_service();
}

// What concerns one agent alone is its answer.
void SimulatedJob::publish(const std::string& sender) {
  const RendezvousVersion now = version_of(service_.state());
  const bool is_new = !(now == published_);
  published_ = now;
  for (const auto& machine : machines_) {
    if (machine->has_ended || machine->is_lost) continue;
    const bool is_sender = machine->id() == sender;
    if (!is_sender && !is_new) continue;
    AgentView view = service_.view(machine->id());
    if (is_sender || !(view == machine->told)) send_view(*machine, std::move(view));
  }
}

void SimulatedJob::send_view(Machine& machine, AgentView view) {
  if (machine.is_cut_off) return;
  ++machine.messages_from_server;
  machine.told = std::move(view);
  service_free_at_ = std::max(service_free_at_, clock_.now()) + options_.server_time;
  Time arrival =
      service_free_at_ + options_.latency + (options_.is_random ? delay(0, 20) : microseconds(0));
  arrival = machine.last_view_arrival = std::max(arrival, machine.last_view_arrival);
  clock_.at(arrival, [this, &machine, view = machine.told] {
    if (machine.is_cut_off || machine.is_lost) return;
    machine.view = view;
    machine.is_reached = true;
    wake(machine, microseconds(0));
  });
}

void SimulatedJob::tick_service() {
  // Otherwise no machine is lost, and the job starts with all that it may have.
  if (!options_.is_random) return;
  const auto next = service_.next_event();
  if (!next || service_.state().ended()) return;
  const auto in =
      std::max(std::chrono::duration_cast<microseconds>(*next - clock_.now()), microseconds(1'000));
  clock_.after(in, [this] {
    const auto due = service_.next_event();
    if (!due || *due > clock_.now()) return;
    for (const auto& machine : machines_) {
      // Heartbeats arrive all the time.
      if (!machine->is_lost && !machine->is_cut_off && !machine->has_ended) {
        service_.report(machine->agent.report(), clock_.now());
      }
    }
    const RendezvousState before = service_.state();
    service_.tick(clock_.now());
    check_restarts(before);
    publish("");
    tick_service();
  });
}

}  // namespace lockstep::inline internal
