#pragma once

#include <optional>
#include <string>

#include "launcher/cli/run_flags.h"

namespace lockstep::inline internal {

/// A step of Slurm's that runs a launcher on each of its machines.
struct SrunStep {
  int launchers = 1;
  int launchers_here = 1;
  int node_rank = 0;
  std::string first_host{};
  int port = 0;
};

/// The step in which srun started this process; nothing where it did not, or does not tell enough.
/// Errors: UsageError naming a variable that is no integer.
std::optional<SrunStep> srun_step();

/// Has the launchers of a step meet on its first machine, unless the flags say how machines meet.
/// Errors: UsageError when there are several on a machine.
void meet_in_step(RunFlags& flags, const std::optional<SrunStep>& step);

}  // namespace lockstep::inline internal
