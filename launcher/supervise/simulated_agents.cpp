// The agents of a simulated job: they carry out what JobAgent and the supervision decide, as
// Launcher and Supervisor do.
#include <algorithm>
#include <csignal>
#include <cstdio>

#include "launcher/supervise/simulated_job.h"
#include "launcher/supervise/simulated_parts.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

const char* name_of_event(const SupervisionEvent& event) {
  struct Names {
    const char* operator()(const happened::GenerationReady&) { return "GenerationReady"; }
    const char* operator()(const happened::WorkerStarted&) { return "WorkerStarted"; }
    const char* operator()(const happened::MessageReceived& received) {
      struct MessageNames {
        const char* operator()(const KeepsState&) { return "KeepsState"; }
        const char* operator()(const LeftGroup&) { return "LeftGroup"; }
        const char* operator()(const TrainingDone&) { return "TrainingDone"; }
        const char* operator()(const StateFile&) { return "StateFile"; }
        const char* operator()(const TookRank&) { return "TookRank"; }
        const char* operator()(const CallsFile&) { return "CallsFile"; }
        const char* operator()(const PythonStacksPipe&) { return "PythonStacksPipe"; }
        const char* operator()(const DeadlineExpired&) { return "DeadlineExpired"; }
        const char* operator()(const CannotRecover&) { return "CannotRecover"; }
      };
      return std::visit(MessageNames(), received.message);
    }
    const char* operator()(const happened::LinkClosed&) { return "LinkClosed"; }
    const char* operator()(const happened::RankNotRead&) { return "RankNotRead"; }
    const char* operator()(const happened::WorkerEnded&) { return "WorkerEnded"; }
    const char* operator()(const happened::WorkerSuspended&) { return "WorkerSuspended"; }
    const char* operator()(const happened::GroupEmptied&) { return "GroupEmptied"; }
    const char* operator()(const happened::StopSignal&) { return "StopSignal"; }
    const char* operator()(const happened::NoticeSignal&) { return "NoticeSignal"; }
    const char* operator()(const happened::SignalFateRead&) { return "SignalFateRead"; }
    const char* operator()(const happened::HangExplained&) { return "HangExplained"; }
    const char* operator()(const happened::HangingPlacesRead&) { return "HangingPlacesRead"; }
    const char* operator()(const happened::ViewChanged&) { return "ViewChanged"; }
    const char* operator()(const happened::RendezvousLost&) { return "RendezvousLost"; }
    const char* operator()(const happened::DecisionDue&) { return "DecisionDue"; }
  };
  return std::visit(Names(), event);
}

// 0: none.
WorkerId worker_of(const SupervisionEvent& event) {
  return std::visit(
      [](const auto& what) -> WorkerId {
        if constexpr (requires { what.worker; }) {
          return what.worker;
        } else {
          return 0;
        }
      },
      event);
}

}  // namespace

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

void SimulatedJob::wake(Machine& machine, microseconds after) {
  if (!machine.can_act()) return;
  const Time at = clock_.now() + after;
  if (machine.has_wakeup && machine.wakes_at <= at) return;
  machine.has_wakeup = true;
  machine.wakes_at = at;
  const std::uint64_t number = ++machine.wakeup;
  clock_.after(after, [this, &machine, number] {
    if (number != machine.wakeup || !machine.can_act()) return;
    machine.has_wakeup = false;
    iterate(machine);
  });
}

// One turn of the loop in Supervisor::run().
void SimulatedJob::iterate(Machine& machine) {
  if (!machine.supervision) return run_agent(machine);
  for (const SupervisionEvent& event : std::exchange(machine.inbox, {})) notify(machine, event);
  SupervisionState& state = *machine.supervision;
  if (!(state.view == machine.view)) notify(machine, happened::ViewChanged{machine.view});
  notify(machine, happened::DecisionDue{});
  if (state.phase == SupervisionPhase::kFinished) return supervision_ended(machine);
  if (const auto next = next_deadline(state, clock_.now())) {
    const auto in = std::chrono::duration_cast<microseconds>(*next - clock_.now());
    // A busy machine.
    wake(machine, std::max(in, microseconds(0)) + delay(0, 3));
  }
}

// The loop in Launcher::run(). An agent that is cut off has thrown what the rendezvous threw.
void SimulatedJob::run_agent(Machine& machine) {
  while (!machine.is_cut_off) {
    const auto step = machine.agent.next_step(machine.view, machine.is_reached,
                                              /*has_trouble=*/false, clock_.now());
    publish_agent(machine);
    switch (step) {
      case JobAgent::Step::kWait:
        if (const auto deadline = machine.agent.deadline()) {
          wake(machine, std::chrono::duration_cast<microseconds>(*deadline - clock_.now()));
        }
        return;
      case JobAgent::Step::kReport:
        continue;
      case JobAgent::Step::kJoin:
        machine.agent.join(machine.view, {}, machine.id(), ++machine.store_port);
        publish_agent(machine);
        continue;
      case JobAgent::Step::kStartWorkers:
        machine.supervision.emplace(options_.supervision);
        machine.processes.clear();
        begin_generation(machine);
        return wake(machine, delay(0, 2));
      case JobAgent::Step::kEnd:
        check_end(machine);
        return end_agent(machine);
    }
  }
  end_agent(machine);
}

void SimulatedJob::publish_agent(Machine& machine) {
  for (const std::string& text : machine.agent.take_texts()) {
    if (options_.traces) std::printf("%s says: %s\n", machine.id().c_str(), text.c_str());
  }
  if (machine.agent.take_report_change()) send_report(machine);
}

void SimulatedJob::begin_generation(Machine& machine) {
  const AgentView view = machine.view;
  machine.agent.begin_generation(view, clock_.now());
  publish_agent(machine);
  groups_[view.generation].world_size = view.placement->world_size;
  notify(machine, happened::GenerationReady{.generation = view.generation,
                                            .first_rank = view.placement->first_rank,
                                            .worker_count = machine.agent.joined_workers()});
}

void SimulatedJob::supervision_ended(Machine& machine) {
  const SupervisionState state = *std::exchange(machine.supervision, std::nullopt);
  machine.inbox.clear();
  check_cause(machine, state.outcome);
  check_nothing_is_left(machine, state);
  for (const auto& [id, process] : machine.processes) {
    process->doing = Process::Doing::kGone;
    process->has_children = false;
  }
  if (!machine.is_cut_off) {
    machine.agent.workers_ended(state.outcome, machine.view, clock_.now());
  }
  run_agent(machine);
}

void SimulatedJob::end_agent(Machine& machine) {
  machine.has_ended = true;
  if (!machine.is_cut_off) return;
  service_.closed(machine.id(), clock_.now());
  tick_service();
}

// Events.

void SimulatedJob::post(Machine& machine, SupervisionEvent event) {
  if (!machine.supervision || !machine.can_act()) return;
  machine.inbox.push_back(std::move(event));
  // Now and then the launcher reads stacks, or the machine is busy.
  const bool is_slow = options_.is_random && happens_once_in(20);
  wake(machine, is_slow ? delay(0, 1'500) : delay(0, 2));
}

void SimulatedJob::notify(Machine& machine, const SupervisionEvent& event) {
  SupervisionState& state = *machine.supervision;
  if (coverage_ != nullptr) {
    std::string where = concat("job ", name_of(state.phase));
    if (const WorkerId id = worker_of(event)) {
      const auto worker = state.workers.find(id);
      where = worker == state.workers.end() ? "unknown" : name_of(worker->second.state);
    }
    ++(*coverage_)[{where, name_of_event(event)}];
  }
  if (const auto* const received = std::get_if<happened::MessageReceived>(&event)) {
    if (state.workers.contains(received->worker)) {
      note_message(machine, *machine.processes.at(received->worker), received->message);
    }
  }
  const SupervisionState before = options_.is_random ? state : SupervisionState(state.options);
  const auto actions = step(state, event, clock_.now());
  if (options_.traces &&
      (!actions.empty() || !std::holds_alternative<happened::DecisionDue>(event))) {
    std::printf("%8.3f s %s generation %llu %s: %s of worker %d\n",
                std::chrono::duration<double>(clock_.now().time_since_epoch()).count(),
                machine.id().c_str(), static_cast<unsigned long long>(state.generation),
                name_of(state.phase), name_of_event(event), worker_of(event));
  }
  for (const SupervisionAction& action : actions) {
    std::visit([&](const auto& what) { carry_out(machine, what); }, action);
  }
  if (options_.is_random) check_event(machine, event, before);
}

// Actions.

void SimulatedJob::carry_out(Machine& machine, const action::StartWorker& start) {
  if (options_.is_random) check_start(machine, start);
  processes_.push_back(std::make_unique<Process>());
  Process& process = *processes_.back();
  process.machine = &machine;
  process.worker = start.worker;
  process.pid = next_pid_++;
  process.is_resilient = options_.is_resilient;
  if (options_.is_random) {
    process.leaves_children = process.has_children = happens_once_in(10);
    process.children_ignore_sigterm = happens_once_in(4);
    process.ignores_sigterm = happens_once_in(20);
    process.is_stuck = happens_once_in(200);
    process.blocks_signals = happens_once_in(20);
  }
  machine.processes[start.worker] = &process;
  notify(machine, happened::WorkerStarted{start.worker, process.pid, ""});
  process.rank = machine.supervision->workers.at(start.worker).exit.rank;
  begin_process(process, start.local_rank < 0 ? 0 : machine.supervision->generation);
}

void SimulatedJob::carry_out(Machine& machine, const action::SendRank& send) {
  Process& process = *machine.processes.at(send.worker);
  const SupervisionState& state = *machine.supervision;
  // It ends at this moment.
  const bool waits = process.is_active() && process.doing == Process::Doing::kWaits;
  if (waits && options_.is_random && happens_once_in(300)) {
    end_process(process, {.signal = SIGKILL}, false);
  }
  if (!process.link_is_open) return notify(machine, happened::RankNotRead{send.worker});
  const std::uint64_t generation = state.generation;
  const int rank = state.workers.at(send.worker).exit.rank;
  process.is_known_kept = true;
  process.is_known_to_wait = false;
  if (process.hangs && options_.is_random) {
    check_is_gone(process, milliseconds(2'500), "that does not join");
  }
  // That it hangs is found out only now; a restart that its hang has caused already is the only
  // one.
  const bool is_known = process.hung_in_group && process.generation <= restarted_after_;
  if (process.hangs && !is_known) faulty_.insert(generation);
  clock_.after(delay(1, 300), [this, &process, generation, rank] {
    if (!process.is_active() || process.generation >= generation) return;
    if (process.doing != Process::Doing::kWaits) return;  // It leaves first, and takes it then.
    say(process, TookRank{.generation = generation});
    enter(process, generation, rank);
  });
}

void SimulatedJob::carry_out(Machine& machine, const action::SendLeaveGroup& send) {
  Process& process = *machine.processes.at(send.worker);
  process.asked_to_leave = send.generation;
  const auto patience = process.is_in_collective ? delay(10, 1'500) : delay(1, 300);
  clock_.after(patience, [this, &process, generation = send.generation] {
    if (process.generation == generation) leave_group(process, LeftGroup::Cause::kOtherWorker);
  });
}

void SimulatedJob::carry_out(Machine& machine, const action::SignalWorker& to_one) {
  Process& process = *machine.processes.at(to_one.worker);
  const bool is_blocked =
      process.blocked_since && clock_.now() >= *process.blocked_since + seconds(1);
  if (!process.has_handler && !is_blocked) violate("a worker without a handler is signalled");
  process.blocked_since.reset();
  receive_signal(process, to_one.signal);
}

void SimulatedJob::carry_out(Machine& machine, const action::SignalGroup& to_group) {
  Process& process = *machine.processes.at(to_group.worker);
  const bool is_hanging =
      machine.supervision->workers.at(to_group.worker).state == WorkerState::kHanging;
  if (is_hanging && process.is_active() && process.link_is_open &&
      process.doing == Process::Doing::kTrains) {
    violate(concat("worker ", to_group.worker, " of ", machine.id(), " is killed in rank ",
                   process.rank, " though it does not hang"));
  }
  signal(machine, process, to_group.signal);
}

void SimulatedJob::carry_out(Machine& machine, const action::SignalAll& to_all) {
  for (const auto& [id, worker] : machine.supervision->workers) {
    if (to_all.spared.contains(id)) continue;
    Process& process = *machine.processes.at(id);
    process.was_stopped = process.was_stopped || worker.is_alive();
    signal(machine, process, to_all.signal);
  }
}

void SimulatedJob::carry_out(Machine& machine, const action::ReadSignalFate& read) {
  Process& process = *machine.processes.at(read.worker);
  const SignalFate fate = process.blocks_signals                     ? SignalFate::kBlocked
                          : process.has_handler                      ? SignalFate::kSpares
                          : options_.is_random && happens_once_in(4) ? SignalFate::kBlocked
                                                                     : SignalFate::kEnds;
  if (fate != SignalFate::kBlocked) process.blocked_since.reset();
  if (fate == SignalFate::kBlocked && !process.blocked_since) process.blocked_since = clock_.now();
  if (process.blocked_since && clock_.now() > *process.blocked_since + seconds(4)) {
    violate("a signal that is blocked for good is not forwarded");
  }
  notify(machine, happened::SignalFateRead{{read.worker, read.signal}, fate});
}

void SimulatedJob::carry_out(Machine& machine, const action::ExplainHang& explain) {
  if (machine.hang_explained && clock_.now() < *machine.hang_explained + seconds(2)) {
    violate("a hang is explained twice");
  }
  machine.hang_explained = clock_.now();
  happened::HangExplained explained;
  for (const WorkerId id : explain.workers) {
    explained.places[id] = {.hangs_in = "work()",
                            .is_in_collective = machine.processes.at(id)->is_in_collective};
  }
  notify(machine, explained);
}

void SimulatedJob::carry_out(Machine& machine, const action::ReadHangingPlaces& read) {
  happened::HangingPlacesRead places;
  for (const WorkerId id : read.workers) {
    places.places[id] = {.hangs_in = concat("work() ", draw(1, 9)),
                         .is_in_collective = machine.processes.at(id)->is_in_collective};
  }
  notify(machine, places);
}

void SimulatedJob::carry_out(Machine&, const action::ReleaseWaitingWorker&) {}

void SimulatedJob::carry_out(Machine& machine, const action::ReportEnd& report) {
  if (options_.is_random) check_report(machine, report.exit);
  if (report.exit.failed()) machine.agent.worker_failed(report.exit, clock_.now());
  publish_agent(machine);
}

void SimulatedJob::carry_out(Machine&, const action::ShowEnd&) {}

void SimulatedJob::carry_out(Machine& machine, const action::EndGeneration& over) {
  check_cause(machine, over.outcome);
  if (options_.is_random) check_lost_group(machine, over.outcome);
  machine.agent.generation_over(over.outcome, machine.view, clock_.now());
  publish_agent(machine);
}

void SimulatedJob::carry_out(Machine& machine, const action::AskForGeneration& ask) {
  if (options_.is_random) check_kept(machine, ask);
  auto step = machine.agent.next_step(machine.view, machine.is_reached, false, clock_.now());
  if (step == JobAgent::Step::kJoin) {
    machine.agent.join(machine.view, ask.kept, machine.id(), ++machine.store_port);
    step = machine.agent.next_step(machine.view, machine.is_reached, false, clock_.now());
  }
  publish_agent(machine);
  if (step != JobAgent::Step::kStartWorkers) return;
  begin_generation(machine);
  wake(machine, delay(0, 2));
}

void SimulatedJob::carry_out(Machine& machine, const action::Say& words) {
  if (options_.traces) std::printf("%s says: %s\n", machine.id().c_str(), words.text.c_str());
}

void SimulatedJob::signal(Machine& machine, Process& process, int signal) {
  if (options_.is_random) check_signal(machine, process, signal);
  receive_signal(process, signal);
  if (!process.has_children) return;
  if (signal != SIGKILL && (signal != SIGTERM || process.children_ignore_sigterm)) return;
  process.has_children = false;
  if (process.is_alive()) return;
  post(machine, happened::GroupEmptied{process.worker});
}

}  // namespace lockstep::inline internal
