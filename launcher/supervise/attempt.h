#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "diagnose/verdict/attempt_outcome.h"
#include "launcher/job/launch_options.h"
#include "launcher/rendezvous/job_rendezvous.h"
#include "launcher/supervise/event_log.h"
#include "launcher/supervise/group_guard.h"
#include "launcher/supervise/job_board.h"
#include "launcher/supervise/worker_environment.h"
#include "lockstep/os/files/unique_fd.h"
#include "lockstep/os/process/signals.h"

namespace lockstep::inline internal {

/// What all attempts of a job have in common on this machine.
struct JobOnThisMachine {
  const LaunchOptions& options;
  /// The file that workers execute.
  std::string executable;
  Environment inherited_environment;
  /// Of the prefix of each line of a worker on the console.
  std::string line_pattern;
  /// Those that each worker may use, by local rank; empty: all of them.
  BindingPlan processors;
  std::filesystem::path directory;
  std::string job_mark;
  /// That workers are started in, as SpawnOptions has it.
  int control_group = -1;
  /// A copy of the training's state, of programs that leave one with the launcher.
  UniqueFd state_memory{};
  /// How far the training has come at least, as workers that have ended say; 0: no step.
  std::int64_t steps_made = 0;
};

/// A generation of a job as this machine takes part in it.
struct Generation {
  std::uint64_t number = 0;
  NodePlacement placement{};
  /// The bound socket of the job's store, for rank 0.
  UniqueFd store{};
};

/// What an attempt is watched with.
struct AttemptWatch {
  JobRendezvous& rendezvous;
  SignalFd& signals;
  GroupGuard& guard;
  EventLog& events;
  JobBoard& board;
  /// Called once the workers run.
  std::function<void()> on_started;
  /// Called as each worker ends with a failure.
  std::function<void(const WorkerExit&)> on_failure;
  /// Called when a generation is over whose workers stay for the next, and then for that one until
  /// it is there, with the local ranks of those workers. See Rounds.
  std::function<void(const AttemptOutcome&)> on_over;
  std::function<std::optional<Generation>(const std::set<int>& kept)> next;
};

/// Runs the workers of a job on this machine to their end, through one generation or, where they
/// outlive it, several. What it returns is of the last.
/// Errors: ExecError when they cannot be started, SystemError when logs cannot be written, those of
/// JobRendezvous::wait(). No worker is left.
AttemptOutcome run_attempt(JobOnThisMachine& job, Generation generation, const AttemptWatch& watch);

}  // namespace lockstep::inline internal
