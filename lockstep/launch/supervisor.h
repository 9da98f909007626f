#pragma once

#include <functional>
#include <map>
#include <vector>

#include "lockstep/launch/attempt_outcome.h"
#include "lockstep/launch/group_guard.h"
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
/// fails or the launcher is told to stop, and lets none stay behind.
/// Threads: the launcher's only one. It reaps every child of the process.
/// Lifetime: the destructor kills whatever still runs.
class Supervisor {
 public:
  /// `signals` must deliver SIGCHLD beside those that stop the job.
  Supervisor(SignalFd& signals, GroupGuard& guard, std::chrono::milliseconds shutdown_timeout)
      : signals_(signals), guard_(guard), stop_(shutdown_timeout) {}
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  /// `on_exit` is called as each worker ends, `on_start` as each has been started.
  /// Errors: those of spawn_process(), after the workers started before have been killed.
  AttemptOutcome run(const std::vector<Worker>& workers,
                     const std::function<void(const WorkerExit&)>& on_exit,
                     const std::function<void(const WorkerExit&)>& on_start = {});

 private:
  // A worker with all that it started.
  struct Group {
    WorkerExit worker;
    bool running = true;
    bool told_to_stop = false;
  };

  void start(const std::vector<Worker>& workers,
             const std::function<void(const WorkerExit&)>& on_start);
  void handle_signals();
  void note_ended_workers(const std::function<void(const WorkerExit&)>& on_exit);
  void forget_empty_groups();
  void send(int signal);
  void terminate_stragglers();
  void wait_for_news();
  bool any_running() const;

  SignalFd& signals_;
  GroupGuard& guard_;
  StopSequence stop_;
  /// Those that may still have a process, by id.
  std::map<pid_t, Group> groups_;
  /// SIGTERM was sent.
  bool terminated_ = false;
  AttemptOutcome outcome_;
};

}  // namespace lockstep
