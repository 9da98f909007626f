#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "launcher/rendezvous/rendezvous_service.h"
#include "launcher/supervise/supervision.h"

// A job of several machines in virtual time, for tests: the rendezvous and the supervision as they
// are, and between them simulated processes, connections and faults.

namespace lockstep::inline internal {

/// What is called in order of time; nothing waits.
class VirtualClock {
 public:
  using Time = SupervisionState::Time;

  Time now() const { return now_; }
  void after(std::chrono::microseconds delay, std::function<void()> call) {
    calls_.push({now_ + delay, next_++, std::move(call)});
  }
  /// The next call. False: there is none, or it is later than `end`.
  bool run_next(Time end);

 private:
  struct Call {
    Time time;
    std::uint64_t number;
    std::function<void()> run;
    bool operator<(const Call& other) const {
      return std::pair(other.time, other.number) < std::pair(time, number);
    }
  };

  Time now_{};
  std::uint64_t next_ = 0;
  std::priority_queue<Call> calls_;
};

struct SimulatedOptions {
  std::uint64_t seed = 0;
  int machines = 1;
  int workers_per_machine = 2;
  RendezvousRules rules{};
  SupervisionOptions supervision{.shutdown_timeout = std::chrono::seconds(30)};
  /// The workers keep their state.
  bool is_resilient = true;
  /// From and to the agent that serves the rendezvous, and what that takes for each message.
  std::chrono::microseconds latency{500};
  std::chrono::microseconds server_time{50};
  /// Delays are drawn, and messages come late or twice.
  bool is_random = false;
  /// Each event of the supervision is printed.
  bool traces = false;
  /// How long the training takes once all ranks have joined.
  std::chrono::milliseconds training{60'000};
};

/// Counts which events came in which state: (state, event).
using Coverage = std::map<std::pair<std::string, std::string>, std::uint64_t>;

class SimulatedJob {
 public:
  using Time = VirtualClock::Time;

  explicit SimulatedJob(const SimulatedOptions& options, Coverage* coverage = nullptr);
  ~SimulatedJob();
  SimulatedJob(const SimulatedJob&) = delete;
  SimulatedJob& operator=(const SimulatedJob&) = delete;

  /// Draws one fault of a kind that the job can have now.
  void inject_any_fault();
  /// No more faults: whatever hangs for good without a rank that waits for it is killed.
  void calm_down();
  void kill_worker(int machine, int local_rank);
  void add_machine();
  /// Until all agents have ended, or the condition holds. False: not by then.
  bool run_until(Time end, const std::function<bool()>& condition = {});

  bool has_ended() const;
  bool all_ranks_train() const;
  const RendezvousState& rendezvous() const { return service_.state(); }
  VirtualClock& clock() { return clock_; }
  int draw(int least, int most) { return std::uniform_int_distribution(least, most)(random_); }
  bool happens_once_in(int times) { return draw(1, times) == 1; }
  /// What should not have been; empty: nothing.
  const std::string& violation() const { return violation_; }
  /// For people: what the job waits for.
  std::string describe() const;

  struct Messages {
    std::uint64_t to_server = 0;
    std::uint64_t from_server = 0;
    std::uint64_t most_to_one_machine = 0;
  };
  Messages messages() const;
  void forget_messages();

 private:
  struct Process;
  struct Machine;
  struct Group;

  void violate(const std::string& what);
  std::chrono::microseconds delay(int least_ms, int most_ms);

  // The rendezvous.
  void report(Machine& machine);
  void deliver_report(Machine& machine, const AgentReport& report);
  void publish(const std::string& sender);
  void send_view(Machine& machine, AgentView view);
  void tick_service();

  // The agents.
  void wake(Machine& machine, std::chrono::microseconds after);
  void iterate(Machine& machine);
  void next_step(Machine& machine);
  void join(Machine& machine);
  void begin_generation(Machine& machine);
  void tell_of_failure(Machine& machine, const WorkerFault& fault);
  void tell_of_failure(Machine& machine, const WorkerExit& exit);
  void supervision_ended(Machine& machine);
  void leave(Machine& machine, const std::string& farewell);
  void end(Machine& machine);
  void check_cause(const Machine& machine, const GenerationOutcome& outcome);
  void check_restarts(const RendezvousState& before);

  // The supervision.
  void notify(Machine& machine, const SupervisionEvent& event);
  void post(Machine& machine, SupervisionEvent event);
  void carry_out(Machine& machine, const SupervisionAction& action);
  void start(Machine& machine, const action::StartWorker& start);
  void signal(Machine& machine, Process& process, int signal);

  // The workers.
  Process* find(Machine& machine, WorkerId worker);
  void say(Process& process, WorkerMessage message);
  void enter(Process& process, std::uint64_t generation, int rank);
  void break_group(std::uint64_t generation);
  void leave_group(Process& process, LeftGroup::Cause cause);
  void notice_lost_peer(Process& process, std::uint64_t generation);
  void notice_late_peer(Process& process, std::uint64_t generation);
  void complete_training(std::uint64_t generation);
  void end_process(Process& process, WorkerExit how, bool is_own_fault);
  bool any_waits_in(std::uint64_t generation);
  void note_fault(const Process& process);
  void hang(Process& process);
  void receive_signal(Process& process, int signal);
  std::vector<Process*> running_processes();

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
  /// Generations in which something failed.
  std::set<std::uint64_t> faulty_;
  std::string violation_;
  int next_pid_ = 1;
};

}  // namespace lockstep::inline internal
