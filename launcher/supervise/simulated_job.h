#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "launcher/rendezvous/rendezvous_service.h"
#include "launcher/supervise/supervision.h"
#include "launcher/supervise/virtual_clock.h"

// A job of several machines in virtual time, for tests: the real rendezvous, agents and
// supervision, with simulated processes, connections and faults.

namespace lockstep::inline internal {

/// Options of a SimulatedJob.
struct SimulatedOptions {
  std::uint64_t seed = 0;
  int machines = 1;
  int workers_per_machine = 2;
  RendezvousRules rules{};
  SupervisionOptions supervision{.shutdown_timeout = std::chrono::seconds(30)};
  /// The workers keep their state.
  bool is_resilient = true;
  /// Latency of a message to or from the agent that serves the rendezvous, and the time to handle
  /// it there.
  std::chrono::microseconds latency{500};
  std::chrono::microseconds server_time{50};
  /// Draw latencies; deliver messages late or twice.
  bool is_random = false;
  /// Print each event of the supervision.
  bool traces = false;
  /// Duration of the training once all ranks have joined.
  std::chrono::milliseconds training{60'000};
};

/// Number of events by (state, event).
using Coverage = std::map<std::pair<std::string, std::string>, std::uint64_t>;

/// Runs a simulated job and checks it.
class SimulatedJob {
 public:
  using Time = VirtualClock::Time;

  explicit SimulatedJob(const SimulatedOptions& options, Coverage* coverage = nullptr);
  ~SimulatedJob();
  SimulatedJob(const SimulatedJob&) = delete;
  SimulatedJob& operator=(const SimulatedJob&) = delete;

  /// Injects a random fault that is possible now.
  void inject_any_fault();
  /// Ends the faults: kills whatever hangs permanently without a rank that waits for it.
  void calm_down();
  void kill_worker(int machine, int local_rank);
  void add_machine();
  /// Runs until all agents have ended or `condition` holds. Returns false if neither happens before
  /// `end`.
  bool run_until(Time end, const std::function<bool()>& condition = {});

  bool has_ended() const;
  bool all_ranks_train() const;
  const RendezvousState& rendezvous() const { return service_.state(); }
  VirtualClock& clock() { return clock_; }
  int draw(int least, int most) { return std::uniform_int_distribution(least, most)(random_); }
  bool happens_once_in(int times) { return draw(1, times) == 1; }
  /// A violated invariant; empty: none.
  const std::string& violation() const { return violation_; }
  /// What the job waits for, for people.
  std::string describe() const;

  struct Messages {
    std::uint64_t to_server = 0;
    std::uint64_t from_server = 0;
    std::uint64_t most_to_one_machine = 0;
  };
  Messages messages() const;
  void forget_messages();

 private:
  // simulated_parts.h
  struct Process;
  struct Machine;
  struct Group;

  std::chrono::microseconds delay(int least_ms, int most_ms);

  // simulated_rendezvous.cpp: the server, and the connections to it.
  void send_report(Machine& machine);
  void deliver_report(Machine& machine, const AgentReport& report);
  void publish(const std::string& sender);
  void send_view(Machine& machine, AgentView view);
  void tick_service();

  // simulated_agents.cpp: what Launcher and Supervisor carry out.
  void wake(Machine& machine, std::chrono::microseconds after);
  void iterate(Machine& machine);
  void run_agent(Machine& machine);
  void publish_agent(Machine& machine);
  void begin_generation(Machine& machine);
  void supervision_ended(Machine& machine);
  void end_agent(Machine& machine);
  void notify(Machine& machine, const SupervisionEvent& event);
  void post(Machine& machine, SupervisionEvent event);
  void carry_out(Machine& machine, const action::StartWorker& start);
  void carry_out(Machine& machine, const action::SendRank& send);
  void carry_out(Machine& machine, const action::SendLeaveGroup& send);
  void carry_out(Machine& machine, const action::SignalWorker& to_one);
  void carry_out(Machine& machine, const action::SignalGroup& to_group);
  void carry_out(Machine& machine, const action::SignalAll& to_all);
  void carry_out(Machine& machine, const action::ReadSignalFate& read);
  void carry_out(Machine& machine, const action::ExplainHang& explain);
  void carry_out(Machine& machine, const action::ReadHangingPlaces& read);
  void carry_out(Machine& machine, const action::ReleaseWaitingWorker& release);
  void carry_out(Machine& machine, const action::ReportEnd& report);
  void carry_out(Machine& machine, const action::ShowEnd& show);
  void carry_out(Machine& machine, const action::EndGeneration& over);
  void carry_out(Machine& machine, const action::AskForGeneration& ask);
  void carry_out(Machine& machine, const action::Say& words);
  void carry_out(Machine&, const action::Finish&) {}
  void signal(Machine& machine, Process& process, int signal);

  // simulated_workers.cpp
  void begin_process(Process& process, std::uint64_t generation);
  void say(Process& process, WorkerMessage message);
  void enter(Process& process, std::uint64_t generation, int rank);
  void break_group(std::uint64_t generation);
  void leave_group(Process& process, LeftGroup::Cause cause);
  void take_place_after_leaving(Process& process, std::uint64_t left);
  void notice_lost_peer(Process& process, std::uint64_t generation);
  void notice_late_peer(Process& process, std::uint64_t generation);
  void complete_training(std::uint64_t generation);
  void end_process(Process& process, WorkerExit how, bool is_own_fault);
  void note_fault(const Process& process);
  void hang(Process& process);
  void receive_signal(Process& process, int signal);
  void save_and_end(std::uint64_t generation);

  // simulated_faults.cpp
  std::vector<Process*> running_processes();
  void inject_fault_of_worker(Process& process);
  void inject_fault_of_machine(Machine& machine);
  void lose(Machine& machine);
  bool any_waits_in(std::uint64_t generation);

  // simulated_checks.cpp
  void violate(const std::string& what);
  void check_restarts(const RendezvousState& before);
  void check_cause(const Machine& machine, const GenerationOutcome& outcome);
  void check_nothing_is_left(const Machine& machine, const SupervisionState& state);
  void check_end(const Machine& machine);
  void note_message(Machine& machine, Process& process, const WorkerMessage& message);
  void check_event(Machine& machine, const SupervisionEvent& event, const SupervisionState& before);
  void check_end_of_worker(const Machine& machine, const SupervisionState& before, WorkerId worker);
  void check_signal(const Machine& machine, Process& process, int signal);
  void check_start(Machine& machine, const action::StartWorker& start);
  void check_is_gone(Process& process, std::chrono::milliseconds within, const std::string& why);
  void check_report(const Machine& machine, const WorkerExit& exit);
  void check_lost_group(const Machine& machine, const GenerationOutcome& outcome);
  void check_kept(const Machine& machine, const action::AskForGeneration& ask);

  SimulatedOptions options_;
  Coverage* const coverage_;
  std::mt19937_64 random_;
  VirtualClock clock_;
  RendezvousService service_;
  Time service_free_at_{};
  RendezvousVersion published_{};
  std::vector<std::unique_ptr<Machine>> machines_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::map<std::uint64_t, Group> groups_;
  /// Generations with a failure.
  std::set<std::uint64_t> faulty_;
  /// The last generation whose end was a restart.
  std::uint64_t restarted_after_ = 0;
  std::string violation_;
  int next_pid_ = 1;
};

}  // namespace lockstep::inline internal
