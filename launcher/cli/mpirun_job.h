#pragma once

#include <functional>
#include <optional>
#include <string>

#include "launcher/cli/run_flags.h"

namespace lockstep::inline internal {

/// A job of mpirun's that runs a launcher on each of its machines.
struct MpirunJob {
  int launchers = 1;
  /// As far as mpirun tells.
  int launchers_here = 1;
  int rank = 0;
  /// Passes what rank 0 says on to all; nothing where this mpirun does so only through its own MPI.
  std::function<std::string(const std::string& text)> broadcast{};
};

/// The job in which mpirun started this process; nothing where it did not.
/// Errors: UsageError naming a variable that is no integer.
std::optional<MpirunJob> mpirun_job();

/// Has the launchers of a job meet on the machine of its first, unless the flags say how machines
/// meet. `own_host`, `port`: where that is, if this is the first.
/// Errors: UsageError when there are several on a machine, or when there is no telling where the
/// first is; those of broadcast.
void meet_in_job(RunFlags& flags, const std::optional<MpirunJob>& job, const std::string& own_host,
                 int port);

}  // namespace lockstep::inline internal
