#pragma once

#include <functional>
#include <optional>
#include <string>

#include "launcher/cli/run_flags.h"
#include "launcher/job/launch_options.h"

namespace lockstep::inline internal {

/// A job of srun or mpirun that runs a launcher on each of its machines.
struct LaunchedJob {
  bool is_srun = false;
  int launchers = 1;
  /// As far as mpirun tells.
  int launchers_here = 1;
  int node_rank = 0;
  /// srun: where the launchers meet.
  HostAndPort first{};
  /// mpirun: sends the text of rank 0 to all; empty where this mpirun does so only through its own
  /// MPI.
  std::function<std::string(const std::string& text)> broadcast{};
};

/// The job in which srun or mpirun started this process; nothing where none did, or where srun does
/// not tell enough. Errors: UsageError naming a variable that is no integer.
std::optional<LaunchedJob> launched_job();

/// Makes the launchers of a job meet on the machine of rank 0, unless the flags say how machines
/// meet. `own_host`, `port`: where that is, if this is rank 0 of mpirun.
/// Errors: UsageError when there are several on a machine, or when rank 0's machine is unknown;
/// those of broadcast.
void meet_in_job(RunFlags& flags, const std::optional<LaunchedJob>& job,
                 const std::function<std::string()>& own_host, int port);

}  // namespace lockstep::inline internal
