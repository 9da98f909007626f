#pragma once

#include <functional>
#include <map>
#include <vector>

#include "lockstep/launch/attempt_outcome.h"
#include "lockstep/launch/group_guard.h"
#include "lockstep/launch/job_board.h"
#include "lockstep/launch/job_rendezvous.h"
#include "lockstep/launch/stop_sequence.h"
#include "lockstep/os/child_process.h"
#include "lockstep/os/signals.h"

namespace lockstep {

struct Worker {
  int rank = 0;
  int local_rank = 0;
  SpawnOptions spawn{};
};

/// Runs the workers of one attempt to their end: starts them, watches them, stops all when one
/// fails, when the launcher is told to stop or the rendezvous ends their generation, and lets none
/// stay behind.
/// Threads: the launcher's only one. It reaps every child of the process.
/// Lifetime: the destructor kills whatever still runs.
class Supervisor {
 public:
  /// `signals` must deliver SIGCHLD beside those that stop the job and `notify_signals`, which are
  /// passed on and stop nothing.
  Supervisor(SignalFd& signals, GroupGuard& guard, JobRendezvous& rendezvous, JobBoard& board,
             std::chrono::milliseconds shutdown_timeout, const std::vector<int>& notify_signals)
      : signals_(signals),
        guard_(guard),
        rendezvous_(rendezvous),
        board_(board),
        notify_signals_(notify_signals),
        stop_(shutdown_timeout) {}
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  using OnStart = std::function<void(const WorkerExit&)>;
  using OnExit = std::function<void(WorkerExit&)>;

  /// `on_start` is called as each worker has been started, `on_started` once all have; `on_exit` as
  /// each ends, and may add to what is known of it.
  /// Errors: those of spawn_process() and JobRendezvous::wait(). The destructor kills the workers
  /// then.
  AttemptOutcome run(const std::vector<Worker>& workers, std::uint64_t generation,
                     const OnStart& on_start, const std::function<void()>& on_started,
                     const OnExit& on_exit);

 private:
  // A worker with all that it started.
  struct Group {
    WorkerExit worker;
    bool running = true;
    bool told_to_stop = false;
  };

  void start(const std::vector<Worker>& workers, const OnStart& on_start);
  void handle_signals();
  void stop_if_told(std::uint64_t generation);
  void note_ended_workers(const OnExit& on_exit);
  void forget_empty_groups();
  void send(int signal);
  void notify(int signal);
  void terminate_stragglers();
  void wait_for_news();
  bool any_running() const;

  SignalFd& signals_;
  GroupGuard& guard_;
  JobRendezvous& rendezvous_;
  JobBoard& board_;
  const std::vector<int>& notify_signals_;
  StopSequence stop_;
  /// Those that may still have a process, by id.
  std::map<pid_t, Group> groups_;
  /// SIGTERM was sent.
  bool terminated_ = false;
  AttemptOutcome outcome_;
};

}  // namespace lockstep
