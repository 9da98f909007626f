#pragma once

#include <functional>
#include <optional>
#include <string>

#include "launcher/cli/run_flags.h"
#include "launcher/job/launch_options.h"

namespace lockstep::inline internal {

/// A job of srun or mpirun that starts one launcher per machine.
struct LaunchedJob {
  bool is_srun = false;
  int launchers = 1;
  /// Number of launchers on this machine, if mpirun says so.
  int launchers_here = 1;
  int node_rank = 0;
  /// srun: where the launchers meet.
  HostAndPort first{};
  /// mpirun: sends rank 0's text to all; empty if this mpirun broadcasts only through its own MPI.
  std::function<std::string(const std::string& text)> broadcast{};
};

/// The job of srun or mpirun that started this process; nothing if neither did, or if srun's
/// variables are insufficient.
/// Errors: UsageError with the variable that is no integer.
std::optional<LaunchedJob> launched_job();

/// Lets the launchers of a job meet on rank 0's machine, unless the flags give a rendezvous.
/// `own_host`, `port`: the address there, if this is rank 0 of mpirun.
/// Errors: UsageError for several launchers on a machine, or if rank 0's machine is unknown; those
/// of broadcast.
void meet_in_job(RunFlags& flags, const std::optional<LaunchedJob>& job,
                 const std::function<std::string()>& own_host, int port);

}  // namespace lockstep::inline internal
