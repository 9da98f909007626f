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

// What the agent of a machine decides outside of the supervision of its workers, with no clock and
// no system call: docs/supervision.md explains each step. Launcher carries the steps out, and so
// does the simulation.

namespace lockstep::inline internal {

/// How the job ended for an agent.
enum class AgentEnd {
  kSucceeded,
  kFailed,        ///< AgentView::cause says why
  kStopped,       ///< by a request or a preemption, on all machines
  kStuckWorkers,  ///< workers of this machine cannot be killed
  kSignal,        ///< a signal to the launcher stopped the workers of this machine
  kPreempted      ///< and the other machines could not be notified
};

struct JobAgentOptions {
  bool is_on_one_machine = true;
  int max_restarts = 0;
  /// Follows a worker's name in the text of a fault: " on <host>", or empty.
  std::string where{};
};

/// The agent of a machine: takes part in generations, reports how their workers end, and knows when
/// and how the job ends. The owner hands it the view of the rendezvous, sends its reports and
/// prints its texts.
class JobAgent {
 public:
  using Time = Deadline::Clock::time_point;

  /// What is to be done next while no supervision runs.
  enum class Step {
    kWait,          ///< for a change of the view, or deadline()
    kReport,        ///< send the report, and ask again
    kJoin,          ///< open the store's socket, and join()
    kStartWorkers,  ///< begin_generation(), and supervise its workers
    kEnd            ///< end() says how
  };

  JobAgent(JobAgentOptions options, RendezvousNode node);

  const AgentReport& report() const { return report_; }
  /// The report has changed since the last call: it is to be sent.
  bool take_report_change();
  /// Lines for the console since the last call.
  std::vector<std::string> take_texts();

  /// `has_trouble`: the rendezvous cannot be reached now.
  Step next_step(const AgentView& view, bool is_reached, bool has_trouble, Time now);
  /// kWait: when next_step() is called at the latest. Nothing: no deadline.
  std::optional<Time> deadline() const { return verdict_by_; }

  /// `kept`: the local ranks of the workers that keep their state. `host`, `port`: of the bound
  /// socket for the generation's store.
  void join(const AgentView& view, const std::set<int>& kept, std::string host, std::uint16_t port);
  void begin_generation(const AgentView& view, Time now);

  /// A worker ended with a failure, while others run.
  void worker_failed(const WorkerExit& exit, Time now);
  /// The generation cannot continue, and workers that keep their state wait for the next.
  void generation_over(const GenerationOutcome& outcome, const AgentView& view, Time now);
  /// No worker runs any more. Returns whether they ended as they should, so that processes that
  /// they started may stay.
  bool workers_ended(GenerationOutcome outcome, const AgentView& view, Time now);

  /// A signal to the launcher while no workers run.
  void stop_by_signal(int signal);
  /// The job is to end on all machines.
  void request_stop(const AgentView& view, const JobStop& wish);
  /// Why the number of workers of this machine cannot become that; empty: it can.
  std::string scale_objection(const AgentView& view, int worker_count) const;
  /// From the next generation on. `by`: for the console.
  void scale(int worker_count, const std::string& by);

  /// Of the workers that the next generation has here.
  int wanted_workers() const { return wanted_workers_; }
  /// Of the workers that the generation which was joined last has here.
  int joined_workers() const { return joined_workers_; }
  /// The generation that runs, or ran last.
  std::uint64_t generation() const { return generation_; }

  /// Of next_step() == kEnd.
  AgentEnd end() const { return end_; }
  int exit_code() const { return exit_code_; }
  /// Of the generation that ended last.
  const GenerationOutcome& outcome() const { return outcome_; }
  /// kFailed: a worker of this machine is the cause.
  bool is_cause(const AgentView& view) const;

 private:
  using Status = AgentReport::Status;

  enum class Phase {
    kBetween,    ///< no workers run, or a supervision does
    kJudging,    ///< the workers have ended: another machine may know the cause better
    kReported,   ///< how they ended is reported
    kAnswering,  ///< they were stopped by a signal after a failure: what it is to the job
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
  /// Until then another machine's report of the cause is awaited.
  std::optional<Time> verdict_by_;
  /// What its user may do about the fault that was reported last.
  std::string remedy_;
  int restarts_said_ = 0;
  AgentEnd end_ = AgentEnd::kSucceeded;
  int exit_code_ = 0;
};

}  // namespace lockstep::inline internal
