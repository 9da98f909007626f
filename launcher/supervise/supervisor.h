#pragma once

#include <exception>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "diagnose/verdict/generation_outcome.h"
#include "diagnose/verdict/hang_verdict.h"
#include "diagnose/verdict/python_stacks.h"
#include "diagnose/verdict/shared_calls.h"
#include "launcher/rendezvous/job_rendezvous.h"
#include "launcher/supervise/event_log.h"
#include "launcher/supervise/failure_report.h"
#include "launcher/supervise/group_guard.h"
#include "launcher/supervise/job_board.h"
#include "launcher/supervise/supervision.h"
#include "launcher/supervise/worker_setup.h"
#include "lockstep/os/process/child_process.h"
#include "lockstep/os/process/fork_server.h"
#include "lockstep/os/process/signals.h"
#include "lockstep/os/socket/wake_set.h"

namespace lockstep::inline internal {

/// The supervisor's interface to this machine's agent.
class SupervisingAgent {
 public:
  virtual ~SupervisingAgent() = default;
  virtual void workers_started() = 0;
  virtual void worker_failed(const WorkerExit& exit) = 0;
  /// The generation cannot continue; workers of this machine wait for the next.
  virtual void generation_is_over(const GenerationOutcome& outcome) = 0;
  /// Joins the next generation; called until it returns one. `kept`: local ranks of the workers
  /// that wait.
  /// Errors: those of JobRendezvous::wait(); SystemError.
  virtual std::optional<Generation> next_generation(const std::set<int>& kept) = 0;
};

/// Objects that a Supervisor uses. `signals` must deliver SIGCHLD, the signals that stop the job,
/// and its notify_signals.
struct SupervisorParts {
  JobRendezvous& rendezvous;
  SignalFd& signals;
  GroupGuard& guard;
  EventLog& events;
  JobBoard& board;
  SupervisingAgent& agent;
};

/// Runs the workers of this machine to their end, through one generation or, if they keep their
/// state, several. It produces the events of SupervisionState and executes its actions; the
/// decisions are in supervision.h and docs/supervision.md.
/// Threads: the launcher's only thread. Reading the stacks of workers that hang delays it by 1.5 s
/// at most. It reaps every child of the process.
/// Lifetime: the destructor kills all workers that still run.
class Supervisor {
 public:
  Supervisor(JobOnThisMachine& job, const SupervisorParts& parts);
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  /// Returns the outcome of the last generation.
  /// Errors: those of JobRendezvous::wait(), once the workers have been stopped; those of
  /// spawn_process(), WorkerSetup and SupervisingAgent, after which the destructor kills the
  /// workers.
  GenerationOutcome run(Generation first);

 private:
  struct Process {
    pid_t pid = 0;
    UniqueFd link;
    SharedCalls calls;
    PythonStacks python;
    bool is_running = true;
  };

  void begin(Generation generation, const std::set<int>& kept, int standbys);
  void notify(const SupervisionEvent& event);
  void read_news();
  void read_signals();
  void read_messages(WorkerId id, Process& process);
  void reap_workers();
  void read_suspended_workers();
  void read_crash_names();
  bool may_job_be_over() const;
  void say_crashes(const WorkerExit* reported = nullptr);
  void wait();
  void forget_processes();

  void carry_out(const action::StartWorker& start);
  pid_t start_process(SpawnOptions spawn);
  void carry_out(const action::SendRank& send);
  void carry_out(const action::SendLeaveGroup& send);
  void carry_out(const action::SignalWorker& signal);
  void carry_out(const action::SignalGroup& signal);
  void carry_out(const action::SignalAll& signal);
  void carry_out(const action::ReadSignalFate& read);
  void carry_out(const action::ExplainHang& explain);
  void carry_out(const action::ReadHangingPlaces& read);
  void carry_out(const action::ReleaseWaitingWorker& release);
  void carry_out(const action::ReportEnd& report);
  void carry_out(const action::ShowEnd& show) { parts_.board.ended(show.exit); }
  void carry_out(const action::EndGeneration& end);
  void carry_out(const action::AskForGeneration& ask);
  void carry_out(const action::Say& words);
  void carry_out(const action::Finish&) {}

  /// Where these workers are, in the given order.
  std::vector<RankPlace> read_places(const std::vector<WorkerId>& workers) const;
  void read_python_stacks(const std::vector<WorkerId>& workers,
                          std::vector<RankPlace>& ranks) const;
  const WorkerExit& exit_of(WorkerId id) const { return state_.workers.at(id).exit; }

  JobOnThisMachine& job_;
  const SupervisorParts parts_;
  WorkerSetup setup_;
  SupervisionState state_;
  /// The workers of the generation, by local rank.
  std::vector<WorkerPlan> plans_;
  std::map<WorkerId, Process> processes_;
  std::optional<ForkServer> fork_server_;
  int lost_fork_servers_ = 0;
  WakeSet news_;
  /// Crashes in generations that other workers survived.
  std::list<CrashNaming> namings_;
  /// Those with all names that have not been printed: the report of the job's failure may print
  /// one.
  std::list<CrashNaming> named_;
  /// Rethrown once the workers have ended.
  std::exception_ptr rendezvous_error_;
};

}  // namespace lockstep::inline internal
