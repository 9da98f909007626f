#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "diagnose/verdict/generation_outcome.h"
#include "launcher/rendezvous/job_rendezvous.h"
#include "lockstep/base/internal/deadline.h"

// Decisions of a machine's agent outside the supervision of its workers, without clock and system
// calls: docs/supervision.md explains each step. Launcher executes the steps, and so does the
// simulation.

namespace lockstep::inline internal {

/// How the job ended for an agent.
enum class AgentEnd {
  kSucceeded,
  kFailed,        ///< AgentView::cause says why
  kStopped,       ///< by a request or a preemption, on all machines
  kStuckWorkers,  ///< workers of this machine cannot be killed
  kSignal,        ///< a signal to the launcher stopped the workers of this machine
  kPreempted      ///< preempted, and the other machines could not be notified
};

/// Options of a JobAgent.
struct JobAgentOptions {
  bool is_on_one_machine = true;
  int max_restarts = 0;
  /// Text after a worker's name in a fault: " on <host>", or empty.
  std::string where{};
};

/// The agent of a machine as a state machine: takes part in generations, reports how their workers
/// end, and knows when and how the job ends. The owner passes the view of the rendezvous, sends the
/// reports and prints the texts.
class JobAgent {
 public:
  using Time = Deadline::Clock::time_point;

  /// What to do next while no supervision runs.
  enum class Step {
    kWait,          ///< wait for a change of the view, or until deadline()
    kReport,        ///< send the report, and ask again
    kJoin,          ///< open the store's socket, and join()
    kStartWorkers,  ///< begin_generation(), and supervise its workers
    kEnd            ///< end() says how
  };

  JobAgent(JobAgentOptions options, RendezvousNode node);

  /// The report to send.
  const AgentReport& report() const { return report_; }
  /// Whether the report has changed since the last call: then send it.
  bool take_report_change();
  /// Console lines since the last call.
  std::vector<std::string> take_texts();

  /// `has_trouble`: the rendezvous is not reachable now.
  Step next_step(const AgentView& view, bool is_reached, bool has_trouble, Time now);
  /// kWait: when to call next_step() at the latest. Empty: no deadline.
  std::optional<Time> deadline() const { return verdict_by_; }

  /// Joins the next generation. `kept`: local ranks of the workers that keep their state. `host`,
  /// `port`: of the bound socket for the generation's store.
  void join(const AgentView& view, const std::set<int>& kept, std::string host, std::uint16_t port);
  /// A generation with this machine begins.
  void begin_generation(const AgentView& view, Time now);

  /// A worker ended with a failure, while others run.
  void worker_failed(const WorkerExit& exit, Time now);
  /// The generation cannot continue; workers that keep their state wait for the next.
  void generation_over(const GenerationOutcome& outcome, const AgentView& view, Time now);
  /// No worker runs any more. Returns whether they ended normally, so processes that they started
  /// may continue.
  bool workers_ended(GenerationOutcome outcome, const AgentView& view, Time now);

  /// A signal to the launcher while no workers run.
  void stop_by_signal(int signal);
  /// Requests the end of the job on all machines.
  void request_stop(const AgentView& view, const JobStop& wish);
  /// Why this machine cannot run that many workers; empty: it can.
  std::string scale_objection(const AgentView& view, int worker_count) const;
  /// Changes the number of workers from the next generation on. `by`: who requested it, for the
  /// console.
  void scale(int worker_count, const std::string& by);

  /// Number of workers of the next generation on this machine.
  int wanted_workers() const { return wanted_workers_; }
  /// Number of workers here in the generation that was joined last.
  int joined_workers() const { return joined_workers_; }
  /// The generation that runs or ran last.
  std::uint64_t generation() const { return generation_; }

  /// How the job ended, after Step::kEnd.
  AgentEnd end() const { return end_; }
  int exit_code() const { return exit_code_; }
  /// Outcome of the last generation.
  const GenerationOutcome& outcome() const { return outcome_; }
  /// kFailed: whether a worker of this machine is the cause.
  bool is_cause(const AgentView& view) const;

 private:
  using Status = AgentReport::Status;

  enum class Phase {
    kBetween,    ///< no workers run, or a supervision does
    kJudging,    ///< the workers have ended: another machine may know the cause better
    kReported,   ///< how they ended is reported
    kAnswering,  ///< a signal stopped them after a failure: waits for what that means to the job
    kLeaving     ///< this agent ends by itself
  };

  Step step_between(const AgentView& view, bool is_reached, bool has_trouble);
  Step step_reported(Time now);
  Step end_with_job(const AgentView& view);
  Step leave(AgentEnd end, int exit_code, std::string farewell);
  Step leave_by_signal(int signal);
  bool awaits_verdict(const AgentView& view, Time now) const;
  bool has_joined(const AgentView& view) const;
  bool was_preempted() const;
  void explain_restart(const AgentView& view, const std::set<int>& kept);
  void explain_hang(const WorkerExit& cause, const AgentView& view);
  void report_outcome(const AgentView& view, Time now);
  void report_failure(const WorkerExit& cause, Time now);
  void report_failure(const WorkerFault& fault, std::string remedy);
  void set_status(Status status);
  void say(std::string text) { texts_.push_back(std::move(text)); }

  const JobAgentOptions options_;
  AgentReport report_;
  bool has_report_changed_ = true;
  std::vector<std::string> texts_;
  Phase phase_ = Phase::kBetween;
  int wanted_workers_;
  int joined_workers_;
  std::uint64_t generation_ = 0;
  /// This machine's first rank in that generation.
  int first_rank_ = 0;
  Time began_{};
  /// The last generation whose workers ran here and have ended.
  std::uint64_t done_ = 0;
  GenerationOutcome outcome_;
  bool ended_well_ = false;
  /// How long to wait for another machine's report of the cause.
  std::optional<Time> verdict_by_;
  /// What the user can do about the fault that was reported last.
  std::string remedy_;
  int restarts_said_ = 0;
  AgentEnd end_ = AgentEnd::kSucceeded;
  int exit_code_ = 0;
};

}  // namespace lockstep::inline internal
