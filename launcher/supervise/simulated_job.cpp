#include "launcher/supervise/simulated_job.h"

#include <algorithm>
#include <csignal>
#include <cstdio>

#include "launcher/rendezvous/fault_of.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Status = AgentReport::Status;
using Phase = RendezvousState::Phase;

// A rank waits so long for another, in a collective or to meet.
constexpr seconds kCollectiveTimeout{3};
constexpr milliseconds kReadsWithin{2'000};

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
        const char* operator()(const TookPlace&) { return "TookPlace"; }
        const char* operator()(const CallsFile&) { return "CallsFile"; }
        const char* operator()(const WaitedInVain&) { return "WaitedInVain"; }
        const char* operator()(const GivesUp&) { return "GivesUp"; }
      };
      return std::visit(MessageNames(), received.message);
    }
    const char* operator()(const happened::LinkClosed&) { return "LinkClosed"; }
    const char* operator()(const happened::PlaceNotRead&) { return "PlaceNotRead"; }
    const char* operator()(const happened::WorkerEnded&) { return "WorkerEnded"; }
    const char* operator()(const happened::WorkerSuspended&) { return "WorkerSuspended"; }
    const char* operator()(const happened::GroupEmptied&) { return "GroupEmptied"; }
    const char* operator()(const happened::StopSignal&) { return "StopSignal"; }
    const char* operator()(const happened::NoticeSignal&) { return "NoticeSignal"; }
    const char* operator()(const happened::SignalFateRead&) { return "SignalFateRead"; }
    const char* operator()(const happened::HangExplained&) { return "HangExplained"; }
    const char* operator()(const happened::HangingPlaceRead&) { return "HangingPlaceRead"; }
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

bool VirtualClock::run_next(Time end) {
  if (calls_.empty() || calls_.top().time > end) return false;
  const Call call = calls_.top();
  calls_.pop();
  now_ = call.time;
  call.run();
  return true;
}

/// A worker's process, as it is and not as the launcher knows it.
struct SimulatedJob::Process {
  enum class Doing {
    kBegins,   ///< has announced nothing
    kWarmsUp,  ///< as a standby worker
    kWaits,    ///< for a place
    kTrains,
    kIsDone,
    kEnds,  ///< its connection is closed; the system takes its memory apart
    kGone
  };

  Machine* machine = nullptr;
  WorkerId worker = 0;
  pid_t pid = 0;
  bool is_resilient = true;
  Doing doing = Doing::kBegins;
  std::uint64_t generation = 0;
  std::uint64_t asked_to_leave = 0;  ///< the last generation that it was
  int rank = -1;
  bool hangs = false;  ///< reads and sends nothing
  bool link_is_open = true;
  bool ignores_sigterm = false;
  bool is_stuck = false;  ///< in the kernel: cannot be killed
  bool failed_by_itself = false;
  bool leaves_children = false;
  bool children_ignore_sigterm = false;
  bool has_children = false;
  bool is_in_collective = false;
  bool gives_up = false;
  bool has_handler = false;
  VirtualClock::Time ended_at{};
  std::vector<WorkerMessage> said{};

  bool is_alive() const { return doing != Doing::kGone; }
  bool is_active() const { return is_alive() && doing != Doing::kEnds && !hangs; }
};

struct SimulatedJob::Machine {
  int number = 0;
  bool is_lost = false;
  bool has_ended = false;
  bool is_cut_off = false;
  int wanted_workers = 0;
  int signals_sent = 0;
  std::optional<VirtualClock::Time> must_end_by{};
  AgentReport report{};
  AgentView view{};
  std::uint64_t generation = 0;
  std::uint64_t done = 0;
  bool has_wakeup = false;
  VirtualClock::Time wakes_at{};
  std::uint64_t wakeup = 0;
  std::optional<SupervisionState> supervision{};
  std::vector<SupervisionEvent> inbox{};
  std::map<WorkerId, Process*> processes{};
  // Connection to the server.
  VirtualClock::Time last_arrival{};
  VirtualClock::Time last_view_arrival{};
  std::uint64_t messages_to_server = 0;
  std::uint64_t messages_from_server = 0;
  AgentView told{};

  const std::string& id() const { return report.node.id; }
};

/// The ranks of a generation, as they meet.
struct SimulatedJob::Group {
  int world_size = 0;
  std::map<int, Process*> members{};
  bool is_broken = false;
  bool is_complete = false;
};

SimulatedJob::SimulatedJob(const SimulatedOptions& options, Coverage* coverage)
    : options_(options),
      coverage_(coverage),
      random_(options.seed),
      service_(options.rules, RendezvousTimeouts{}) {
  for (int i = 0; i < options.machines; ++i) add_machine();
}

SimulatedJob::~SimulatedJob() = default;

void SimulatedJob::violate(const std::string& what) {
  if (violation_.empty()) {
    violation_ = concat(
        what, " (at ",
        std::chrono::duration_cast<milliseconds>(clock_.now().time_since_epoch()).count(), " ms)");
  }
}

microseconds SimulatedJob::delay(int least_ms, int most_ms) {
  if (!options_.is_random) return milliseconds(least_ms);
  return microseconds(draw(least_ms * 1'000, most_ms * 1'000));
}

void SimulatedJob::add_machine() {
  const int number = static_cast<int>(machines_.size());
  machines_.push_back(std::make_unique<Machine>());
  Machine& machine = *machines_.back();
  machine.number = number;
  machine.wanted_workers = options_.workers_per_machine;
  const std::string name = concat("machine-", number);
  machine.report.node = {
      .id = name, .name = name, .host = name, .worker_count = machine.wanted_workers};
  report(machine);
  wake(machine, microseconds(0));
}

// The rendezvous.

void SimulatedJob::report(Machine& machine) {
  if (machine.is_cut_off || machine.is_lost) return;
  ++machine.messages_to_server;
  Time arrival =
      clock_.now() + options_.latency + (options_.is_random ? delay(0, 20) : microseconds(0));
  arrival = machine.last_arrival = std::max(arrival, machine.last_arrival);
  const auto deliver = [this, &machine, report = machine.report] {
    service_free_at_ = std::max(service_free_at_, clock_.now()) + options_.server_time;
    clock_.after(std::chrono::duration_cast<microseconds>(service_free_at_ - clock_.now()),
                 [this, &machine, report] { deliver_report(machine, report); });
  };
  const int times = options_.is_random && happens_once_in(10) ? 2 : 1;
  for (int i = 0; i < times; ++i) {
    clock_.after(std::chrono::duration_cast<microseconds>(arrival - clock_.now()), deliver);
  }
}

void SimulatedJob::deliver_report(Machine& machine, const AgentReport& report) {
  if (machine.is_lost) return;
  const RendezvousState before = options_.is_random ? service_.state() : RendezvousState{};
  service_.report(report, clock_.now());
  if (options_.is_random) check_restarts(before);
  publish(report.node.id);
  tick_service();
}

void SimulatedJob::check_restarts(const RendezvousState& before) {
  const RendezvousState& after = service_.state();
  if (after.restarts > before.restarts && !faulty_.contains(before.generation)) {
    violate(concat("a restart after generation ", before.generation,
                   ", in which nothing failed: ", after.cause));
  }
  if (after.restarts > before.restarts + 1) violate("one failure is two restarts");
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
  clock_.after(std::chrono::duration_cast<microseconds>(arrival - clock_.now()),
               [this, &machine, view = machine.told] {
                 if (machine.is_cut_off || machine.is_lost) return;
                 machine.view = view;
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
        service_.report(machine->report, clock_.now());
      }
    }
    const RendezvousState before = service_.state();
    service_.tick(clock_.now());
    check_restarts(before);
    publish("");
    tick_service();
  });
}

// The agents, as Launcher is one.

void SimulatedJob::wake(Machine& machine, microseconds after) {
  if (machine.has_ended || machine.is_lost) return;
  const Time at = clock_.now() + after;
  if (machine.has_wakeup && machine.wakes_at <= at) return;
  machine.has_wakeup = true;
  machine.wakes_at = at;
  const std::uint64_t number = ++machine.wakeup;
  clock_.after(after, [this, &machine, number] {
    if (number != machine.wakeup || machine.has_ended || machine.is_lost) return;
    machine.has_wakeup = false;
    iterate(machine);
  });
}

void SimulatedJob::iterate(Machine& machine) {
  if (!machine.supervision) return next_step(machine);
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

void SimulatedJob::next_step(Machine& machine) {
  if (machine.is_cut_off) return leave(machine, "");
  const bool was_preempted = machine.report.fault.status == kExitPreempted;
  switch (next_action(machine.view, std::nullopt, machine.done)) {
    case AgentAction::kJoin:
      if (!was_preempted) join(machine);
      return;
    case AgentAction::kStartWorkers: {
      if (was_preempted) {
        machine.generation = machine.done = machine.view.generation;
        machine.report.status = Status::kRunning;
        tell_of_failure(machine, machine.report.fault);
        return;
      }
      machine.supervision.emplace(options_.supervision);
      machine.processes.clear();
      begin_generation(machine);
      wake(machine, delay(0, 2));
      return;
    }
    case AgentAction::kEnd:
      return end(machine);
    case AgentAction::kWait:
    case AgentAction::kStopWorkers:
      return;
  }
}

void SimulatedJob::join(Machine& machine) {
  if (machine.report.status == Status::kReady &&
      machine.report.generation == machine.view.generation) {
    return;
  }
  machine.report.node.worker_count = machine.wanted_workers;
  machine.report.status = Status::kReady;
  machine.report.generation = machine.view.generation;
  report(machine);
}

void SimulatedJob::begin_generation(Machine& machine) {
  const AgentView& view = machine.view;
  machine.generation = view.generation;
  const int worker_count = machine.report.node.worker_count;
  machine.report.status = Status::kRunning;
  machine.report.generation = view.generation;
  machine.report.node.worker_count = machine.wanted_workers;
  report(machine);
  groups_[view.generation].world_size = view.placement->world_size;
  notify(machine, happened::GenerationReady{.generation = view.generation,
                                            .first_rank = view.placement->first_rank,
                                            .worker_count = worker_count});
}

void SimulatedJob::tell_of_failure(Machine& machine, const WorkerFault& fault) {
  if (machine.report.status != Status::kRunning && fault.status != kExitPreempted) return;
  machine.report.status = Status::kFailed;
  machine.report.generation = machine.generation;
  machine.report.fault = fault;
  report(machine);
}

// Without its place: the same failure again and again is the rendezvous's matter.
void SimulatedJob::tell_of_failure(Machine& machine, const WorkerExit& exit) {
  WorkerFault fault = fault_of(exit, "", seconds(100));
  fault.place.clear();
  tell_of_failure(machine, fault);
}

void SimulatedJob::supervision_ended(Machine& machine) {
  const SupervisionState state = *std::exchange(machine.supervision, std::nullopt);
  machine.inbox.clear();
  machine.done = machine.generation;
  const GenerationOutcome& outcome = state.outcome;
  check_cause(machine, outcome);
  for (const auto& [id, process] : machine.processes) {
    const bool is_known_stuck = std::ranges::any_of(
        outcome.stuck,
        [&, worker = process](const WorkerExit& exit) { return exit.pid == worker->pid; });
    if (process->is_alive() && !is_known_stuck) {
      violate(concat("worker ", id, " of ", machine.id(), " is left running"));
    }
    if (state.stop.started() && process->has_children && !is_known_stuck) {
      violate(concat("processes of worker ", id, " are left running"));
    }
    if (process->is_alive()) process->doing = Process::Doing::kGone;
    process->has_children = false;
  }
  if (machine.is_cut_off) return leave(machine, "");
  const WorkerExit* const cause = first_cause(outcome);
  const bool stopped = outcome.stop_signal != 0;
  if (cause != nullptr) {
    tell_of_failure(machine, *cause);
  } else if (machine.report.status == Status::kRunning) {
    const bool well = !stopped && machine.view.generation == machine.generation &&
                      machine.view.placement.has_value();
    machine.report.status = well ? Status::kSucceeded : Status::kIdle;
    report(machine);
  }
  if (cause != nullptr && !outcome.stuck.empty()) return leave(machine, "left: stuck");
  if (stopped) return leave(machine, "left, stopped");
  next_step(machine);
}

void SimulatedJob::leave(Machine& machine, const std::string& farewell) {
  machine.report.status = Status::kLeaving;
  machine.report.farewell = farewell;
  report(machine);
  end(machine);
}

void SimulatedJob::end(Machine& machine) {
  machine.has_ended = true;
  if (!machine.is_cut_off) return;
  service_.closed(machine.id(), clock_.now());
  tick_service();
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

// The supervision.

void SimulatedJob::post(Machine& machine, SupervisionEvent event) {
  if (!machine.supervision || machine.has_ended || machine.is_lost) return;
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
  const auto actions = step(state, event, clock_.now());
  if (options_.traces &&
      (!actions.empty() || !std::holds_alternative<happened::DecisionDue>(event))) {
    std::printf("%8.3f s %s generation %llu %s: %s of worker %d\n",
                std::chrono::duration<double>(clock_.now().time_since_epoch()).count(),
                machine.id().c_str(), static_cast<unsigned long long>(state.generation),
                name_of(state.phase), name_of_event(event), worker_of(event));
  }
  for (const SupervisionAction& action : actions) carry_out(machine, action);
}

void SimulatedJob::carry_out(Machine& machine, const SupervisionAction& action) {
  const SupervisionState& state = *machine.supervision;
  const auto process_of = [&](WorkerId worker) -> Process& {
    return *machine.processes.at(worker);
  };
  if (const auto* const starting = std::get_if<action::StartWorker>(&action)) {
    start(machine, *starting);
  } else if (const auto* const send = std::get_if<action::SendPlace>(&action)) {
    Process& process = process_of(send->worker);
    // It ends at this moment.
    const bool waits = process.is_active() && process.doing == Process::Doing::kWaits;
    if (waits && options_.is_random && happens_once_in(300)) {
      end_process(process, {.signal = SIGKILL}, false);
    }
    if (!process.link_is_open) return notify(machine, happened::PlaceNotRead{send->worker});
    const std::uint64_t generation = state.generation;
    const int rank = state.workers.at(send->worker).exit.rank;
    // That it hangs is found out only now, where nobody waited for it before.
    if (process.hangs) faulty_.insert(generation);
    clock_.after(delay(1, 300), [this, &process, generation, rank] {
      if (!process.is_active() || process.generation >= generation) return;
      if (process.doing != Process::Doing::kWaits) return;  // It leaves first, and takes it then.
      say(process, TookPlace{.generation = generation});
      enter(process, generation, rank);
    });
  } else if (const auto* const ask = std::get_if<action::SendLeaveGroup>(&action)) {
    Process& process = process_of(ask->worker);
    process.asked_to_leave = ask->generation;
    const auto patience = process.is_in_collective ? delay(10, 1'500) : delay(1, 300);
    clock_.after(patience, [this, &process, generation = ask->generation] {
      if (process.generation == generation) leave_group(process, LeftGroup::Cause::kOtherWorker);
    });
  } else if (const auto* const to_one = std::get_if<action::SignalWorker>(&action)) {
    receive_signal(process_of(to_one->worker), to_one->signal);
  } else if (const auto* const to_group = std::get_if<action::SignalGroup>(&action)) {
    Process& process = process_of(to_group->worker);
    const bool is_hanging = state.workers.at(to_group->worker).state == WorkerState::kHanging;
    if (is_hanging && process.is_active() && process.link_is_open &&
        process.doing == Process::Doing::kTrains) {
      violate(concat("worker ", to_group->worker, " of ", machine.id(), " is killed in rank ",
                     process.rank, " though it does not hang"));
    }
    signal(machine, process, to_group->signal);
  } else if (const auto* const to_all = std::get_if<action::SignalAll>(&action)) {
    for (const auto& [id, worker] : state.workers) {
      signal(machine, process_of(id), to_all->signal);
    }
  } else if (const auto* const read = std::get_if<action::ReadSignalFate>(&action)) {
    const Process& process = process_of(read->worker);
    const SignalFate fate = process.has_handler  ? SignalFate::kSpares
                            : happens_once_in(4) ? SignalFate::kBlocked
                                                 : SignalFate::kEnds;
    notify(machine, happened::SignalFateRead{read->worker, read->signal, fate});
  } else if (const auto* const explain = std::get_if<action::ExplainHang>(&action)) {
    happened::HangExplained explained;
    for (const WorkerId id : explain->workers) {
      explained.places[id] = {.hangs_in = "work()",
                              .is_in_collective = process_of(id).is_in_collective};
    }
    notify(machine, explained);
  } else if (const auto* const place = std::get_if<action::ReadHangingPlace>(&action)) {
    notify(machine, happened::HangingPlaceRead{place->worker, "work()"});
  } else if (const auto* const report = std::get_if<action::ReportEnd>(&action)) {
    if (!report->exit.failed()) return;
    if (report->exit.told_to_stop || report->exit.follows_another()) return;
    if (options_.rules.max_nodes > 1) tell_of_failure(machine, report->exit);
  } else if (const auto* const over = std::get_if<action::EndGeneration>(&action)) {
    machine.done = machine.generation;
    check_cause(machine, over->outcome);
    if (const WorkerExit* const cause = first_cause(over->outcome)) {
      tell_of_failure(machine, *cause);
    } else if (machine.view.generation == machine.generation && !over->outcome.lost.empty()) {
      tell_of_failure(machine,
                      WorkerFault{.text = over->outcome.lost, .is_hang = over->outcome.is_hang});
    } else {
      machine.report.status = Status::kIdle;
      SimulatedJob::report(machine);
    }
  } else if (std::holds_alternative<action::AskForGeneration>(action)) {
    if (next_action(machine.view, std::nullopt, machine.done) == AgentAction::kJoin) join(machine);
    if (next_action(machine.view, std::nullopt, machine.done) == AgentAction::kStartWorkers) {
      begin_generation(machine);
      wake(machine, delay(0, 2));
    }
  }
}

void SimulatedJob::signal(Machine& machine, Process& process, int signal) {
  receive_signal(process, signal);
  if (!process.has_children) return;
  if (signal != SIGKILL && (signal != SIGTERM || process.children_ignore_sigterm)) return;
  process.has_children = false;
  if (process.is_alive()) return;
  post(machine, happened::GroupEmptied{process.worker});
}

// The workers.

void SimulatedJob::start(Machine& machine, const action::StartWorker& start) {
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
  }
  machine.processes[start.worker] = &process;
  notify(machine, happened::WorkerStarted{start.worker, process.pid, ""});
  const bool is_standby = start.local_rank < 0;
  const int rank = machine.supervision->workers.at(start.worker).exit.rank;
  const std::uint64_t generation = machine.supervision->generation;
  process.doing = is_standby ? Process::Doing::kWarmsUp : Process::Doing::kBegins;
  process.generation = is_standby ? 0 : generation;
  process.rank = rank;
  if (is_standby && options_.is_random && happens_once_in(4)) {
    clock_.after(delay(1, 1'000), [this, &process] {
      if (process.is_active()) end_process(process, {.exit_code = 1}, true);
    });
  }
  // Python loads LibTorch.
  clock_.after(delay(500, 3'000), [this, &process, is_standby, generation, rank] {
    if (!process.is_active()) return;
    process.has_handler = true;
    if (options_.is_random) {
      say(process, CallsFile{});
      if (happens_once_in(8)) say(process, StateFile{});
    }
    if (process.is_resilient) say(process, KeepsState{.reads_within = kReadsWithin});
    if (is_standby) {
      process.doing = Process::Doing::kWaits;
    } else {
      enter(process, generation, rank);
    }
  });
}

void SimulatedJob::say(Process& process, WorkerMessage message) {
  if (!process.link_is_open || process.hangs) return;
  process.said.push_back(message);
  const WorkerId worker = process.worker;
  post(*process.machine, happened::MessageReceived{worker, std::move(message)});
  if (options_.is_random && happens_once_in(10)) {
    const auto which = static_cast<std::size_t>(draw(0, static_cast<int>(process.said.size()) - 1));
    if (!std::holds_alternative<LeftGroup>(process.said[which])) {
      post(*process.machine, happened::MessageReceived{worker, process.said[which]});
    }
  }
}

void SimulatedJob::enter(Process& process, std::uint64_t generation, int rank) {
  process.generation = generation;
  process.rank = rank;
  process.doing = Process::Doing::kTrains;
  process.is_in_collective = false;
  Group& group = groups_[generation];
  const auto [member, is_new] = group.members.emplace(rank, &process);
  if (!is_new && member->second->is_active() && member->second->generation == generation &&
      member->second != &process) {
    violate(concat("two workers are rank ", rank, " of generation ", generation));
  }
  if (process.asked_to_leave >= generation) {
    clock_.after(delay(1, 50), [this, &process, generation] {
      if (process.generation == generation) leave_group(process, LeftGroup::Cause::kOtherWorker);
    });
    return;
  }
  if (group.is_broken) {
    clock_.after(delay(1, 50),
                 [this, &process, generation] { notice_lost_peer(process, generation); });
    return;
  }
  if (static_cast<int>(group.members.size()) < group.world_size) {
    clock_.after(kCollectiveTimeout + delay(0, 500), [this, &process, generation] {
      if (!groups_[generation].is_complete) notice_late_peer(process, generation);
    });
    return;
  }
  group.is_complete = true;
  for (const auto& [number, peer] : group.members) {
    if (options_.is_random) peer->is_in_collective = happens_once_in(2);
    // That hangs since before it met.
    if (peer->hangs) hang(*peer);
  }
  clock_.after(options_.training, [this, generation] { complete_training(generation); });
}

void SimulatedJob::complete_training(std::uint64_t generation) {
  const Group& group = groups_[generation];
  if (group.is_broken) return;
  for (const auto& [rank, process] : group.members) {
    if (process->hangs) return;
  }
  for (const auto& [rank, process] : group.members) {
    clock_.after(delay(0, 500), [this, worker = process, generation] {
      if (!worker->is_active() || worker->generation != generation ||
          worker->doing != Process::Doing::kTrains) {
        return;
      }
      worker->doing = Process::Doing::kIsDone;
      if (worker->is_resilient) say(*worker, TrainingDone{});
      clock_.after(delay(1, 500), [this, worker] {
        if (worker->is_active()) end_process(*worker, {.exit_code = 0}, false);
      });
    });
  }
}

// Its peers see that a member is gone.
void SimulatedJob::break_group(std::uint64_t generation) {
  Group& group = groups_[generation];
  if (std::exchange(group.is_broken, true)) return;
  for (const auto& [rank, process] : group.members) {
    clock_.after(delay(1, 50),
                 [this, worker = process, generation] { notice_lost_peer(*worker, generation); });
  }
}

void SimulatedJob::notice_lost_peer(Process& process, std::uint64_t generation) {
  if (process.generation != generation || process.doing != Process::Doing::kTrains) return;
  if (!process.is_active()) return;
  if (process.is_resilient) return leave_group(process, LeftGroup::Cause::kOtherWorker);
  if (options_.is_random && happens_once_in(3)) {  // It computes, and asks no other for long.
    clock_.after(delay(2'000, 20'000),
                 [this, &process, generation] { notice_lost_peer(process, generation); });
    return;
  }
  WorkerExit exit{.exit_code = 1, .error_message = "PeerLost: a rank is gone"};
  exit.error_kind = ErrorKind::kOtherWorker;
  end_process(process, exit, false);
}

void SimulatedJob::notice_late_peer(Process& process, std::uint64_t generation) {
  if (process.generation != generation || process.doing != Process::Doing::kTrains) return;
  if (!process.is_active() || groups_[generation].is_broken) return;
  faulty_.insert(generation);
  say(process, WaitedInVain{.operation = "all_reduce", .waited = kCollectiveTimeout});
  clock_.after(delay(100, 500), [this, &process, generation] {
    if (process.generation != generation || !process.is_active()) return;
    if (process.is_resilient) return leave_group(process, LeftGroup::Cause::kLateRank);
    end_process(process, {.exit_code = 1, .error_message = "TimeoutError: a rank is late"}, true);
  });
}

void SimulatedJob::leave_group(Process& process, LeftGroup::Cause cause) {
  if (!process.is_active() || process.doing != Process::Doing::kTrains) return;
  if (!process.link_is_open) {
    WorkerExit exit{.exit_code = 1, .error_message = "PeerLost: a rank is gone"};
    exit.error_kind = ErrorKind::kOtherWorker;
    return end_process(process, exit, false);
  }
  process.doing = Process::Doing::kWaits;
  process.is_in_collective = false;
  say(process, LeftGroup{.generation = process.generation, .text = "why", .cause = cause});
  break_group(process.generation);
  // It may have been sent its place before it had left.
  const std::uint64_t left = process.generation;
  clock_.after(delay(1, 100), [this, &process, left] {
    Machine& machine = *process.machine;
    if (!machine.supervision || machine.supervision->generation <= left) return;
    if (!process.is_active() || process.doing != Process::Doing::kWaits) return;
    const auto worker = machine.supervision->workers.find(process.worker);
    if (worker == machine.supervision->workers.end()) return;
    if (worker->second.state != WorkerState::kRecovering) return;
    const std::uint64_t generation = machine.supervision->generation;
    const int rank = worker->second.exit.rank;
    say(process, TookPlace{.generation = generation});
    enter(process, generation, rank);
  });
}

void SimulatedJob::note_fault(const Process& process) {
  if (process.generation > 0) faulty_.insert(process.generation);
  // It may have yet to read its place.
  const auto& supervision = process.machine->supervision;
  if (!supervision) return;
  const auto worker = supervision->workers.find(process.worker);
  if (worker == supervision->workers.end()) return;
  if (worker->second.state != WorkerState::kDismissed) faulty_.insert(supervision->generation);
}

void SimulatedJob::end_process(Process& process, WorkerExit how, bool is_own_fault) {
  if (!process.is_alive() || process.doing == Process::Doing::kEnds) return;
  Machine& machine = *process.machine;
  if (is_own_fault || process.doing == Process::Doing::kTrains) note_fault(process);
  process.failed_by_itself =
      (is_own_fault || process.hangs) && (how.exit_code != 0 || how.signal != 0);
  const bool was_in_group =
      process.doing == Process::Doing::kTrains || process.doing == Process::Doing::kBegins;
  process.doing = Process::Doing::kEnds;
  if (process.link_is_open) {
    process.link_is_open = false;
    clock_.after(delay(0, 1), [this, &process, &machine] {
      post(machine, happened::LinkClosed{process.worker});
    });
  }
  if (was_in_group) break_group(process.generation);
  const bool is_slow = options_.is_random && happens_once_in(10);
  clock_.after(is_slow ? delay(100, 3'000) : delay(1, 30), [this, &process, &machine, how] {
    process.doing = Process::Doing::kGone;
    process.ended_at = clock_.now();
    post(machine, happened::WorkerEnded{process.worker, how});
    if (!process.has_children) post(machine, happened::GroupEmptied{process.worker});
  });
}

void SimulatedJob::hang(Process& process) {
  process.hangs = true;
  note_fault(process);
  const std::uint64_t generation = process.generation;
  if (generation == 0) return;
  Group& group = groups_[generation];
  for (const auto& [rank, peer] : group.members) {
    clock_.after(kCollectiveTimeout + delay(0, 500),
                 [this, worker = peer, generation] { notice_late_peer(*worker, generation); });
  }
}

void SimulatedJob::receive_signal(Process& process, int signal) {
  if (!process.is_alive() || process.doing == Process::Doing::kEnds || process.is_stuck) return;
  if (signal == SIGKILL) {
    clock_.after(delay(0, 20),
                 [this, &process] { end_process(process, {.signal = SIGKILL}, false); });
    return;
  }
  if (process.hangs || process.ignores_sigterm) return;
  if (signal == SIGUSR1) {  // A notice of a preemption: all ranks save, and end.
    faulty_.insert(process.generation);
    if (!groups_.contains(process.generation)) return;
    for (const auto& [rank, peer] : groups_[process.generation].members) {
      clock_.after(delay(100, 500), [this, worker = peer] {
        if (worker->is_active() && worker->doing != Process::Doing::kIsDone) {
          end_process(*worker, {.exit_code = kExitPreempted}, true);
        }
      });
    }
    return;
  }
  clock_.after(delay(1, 200),
               [this, &process, signal] { end_process(process, {.signal = signal}, false); });
}

// Faults.

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
  Process* const process =
      running.empty()
          ? nullptr
          : running[static_cast<std::size_t>(draw(0, static_cast<int>(running.size()) - 1))];
  const bool can_act = !machine.has_ended && !machine.is_lost;
  const bool supervises = can_act && machine.supervision.has_value();
  switch (draw(1, 24)) {
    case 1:
    case 2:
    case 3:
    case 4:
      if (process != nullptr) end_process(*process, {.signal = SIGKILL}, true);
      return;
    case 5:
    case 6:
      if (process != nullptr) {
        end_process(*process, {.exit_code = 3, .error_message = "ValueError: bad"}, true);
      }
      return;
    case 7:
    case 8:
    case 9:
      if (process != nullptr) hang(*process);
      return;
    case 10:  // Without a reason.
      if (process == nullptr || !process->is_resilient) return;
      note_fault(*process);
      return leave_group(*process, LeftGroup::Cause::kError);
    case 11:  // It ends well in the middle of the training.
      if (process != nullptr && process->doing == Process::Doing::kTrains) {
        end_process(*process, {.exit_code = 0}, false);
      }
      return;
    case 12:  // It closes its connection and goes on, or does not end.
      if (process == nullptr || !process->link_is_open) return;
      note_fault(*process);
      process->link_is_open = false;
      post(*process->machine, happened::LinkClosed{process->worker});
      if (happens_once_in(2)) hang(*process);
      return;
    case 13:
      if (process == nullptr) return;
      say(*process, GivesUp{});
      return end_process(*process, {.exit_code = 1, .error_message = "ValueError: end"}, true);
    case 14:
      if (!supervises || !happens_once_in(4)) return;
      machine.must_end_by = clock_.now() + options_.supervision.shutdown_timeout + seconds(15);
      if (machine.generation > 0) faulty_.insert(machine.generation);
      return post(machine, happened::StopSignal{happens_once_in(2) ? SIGTERM : SIGINT});
    case 15:
      if (!supervises || !happens_once_in(4)) return;
      if (machine.generation > 0) faulty_.insert(machine.generation);
      return post(machine, happened::NoticeSignal{SIGUSR1});
    case 16:
    case 17:
      if (!supervises || machine.report.status != Status::kRunning) return;
      machine.wanted_workers = machine.report.node.worker_count = draw(1, 3);
      faulty_.insert(machine.generation);
      return report(machine);
    case 18:
      if (!can_act || !happens_once_in(16)) return;
      machine.report.stop = {.by = "root", .at_once = happens_once_in(2)};
      return report(machine);
    case 19:
      if (options_.rules.max_nodes > 1 && machines_.size() < 6) add_machine();
      return;
    case 20: {  // The machine is lost with all that runs there.
      if (!can_act || !happens_once_in(4) || options_.rules.max_nodes == 1) return;
      machine.is_lost = true;
      for (const auto& [id, worker] : machine.processes) {
        if (!worker->is_alive()) continue;
        note_fault(*worker);
        worker->doing = Process::Doing::kGone;
        break_group(worker->generation);
      }
      service_.closed(machine.id(), clock_.now());
      return tick_service();
    }
    case 21:
      if (!supervises || !happens_once_in(4)) return;
      machine.is_cut_off = true;
      machine.must_end_by = clock_.now() + options_.supervision.shutdown_timeout + seconds(15);
      if (machine.generation > 0) faulty_.insert(machine.generation);
      return post(machine, happened::RendezvousLost{});
    case 22:
      if (process != nullptr) {
        post(*process->machine, happened::WorkerSuspended{process->worker, SIGSTOP});
      }
      return;
    case 23:  // A message of an earlier generation comes late.
      if (process == nullptr || process->generation < 2) return;
      say(*process, TookPlace{.generation = process->generation - 1});
      return say(*process, LeftGroup{.generation = process->generation - 1, .text = "late"});
    default:
      return;
  }
}

// The end.

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

bool SimulatedJob::has_ended() const {
  return std::ranges::all_of(
      machines_, [](const auto& machine) { return machine->has_ended || machine->is_lost; });
}

bool SimulatedJob::all_ranks_train() const {
  const RendezvousState& state = service_.state();
  if (state.phase != Phase::kRunning) return false;
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
        ", report ", static_cast<int>(machine->report.status), ", generation ", machine->generation,
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
