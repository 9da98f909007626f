#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "lockstep/launch/attempt_outcome.h"
#include "lockstep/launch/event_log.h"
#include "lockstep/launch/group_guard.h"
#include "lockstep/launch/job_board.h"
#include "lockstep/launch/job_rendezvous.h"
#include "lockstep/launch/launch_options.h"
#include "lockstep/launch/worker_environment.h"
#include "lockstep/os/signals.h"
#include "lockstep/os/unique_fd.h"

namespace lockstep {

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
};

/// Runs the workers of one generation of a job on this machine to their end. `store`: the bound
/// socket of the job's store, for rank 0. `on_failure` is called as each worker ends with one.
/// Errors: ExecError when they cannot be started, SystemError when logs cannot be written, those of
/// JobRendezvous::wait(). No worker is left.
AttemptOutcome run_attempt(const JobOnThisMachine& job, std::uint64_t generation,
                           const NodePlacement& placement, UniqueFd store,
                           const AttemptWatch& watch,
                           const std::function<void(const WorkerExit&)>& on_failure);

/// The directory of an attempt of a job, with one of each worker in it.
std::filesystem::path attempt_directory(const JobOnThisMachine& job, std::uint64_t generation);

}  // namespace lockstep
