#pragma once

#include <optional>

namespace lockstep::inline internal {

/// This process's rank in a job of mpirun or srun, from the environment.
struct LaunchedPlace {
  enum class Launcher {
    kOpenMpi,  ///< Open MPI's mpirun
    kPmi,      ///< mpirun of MPICH and its derivatives
    kSlurm,    ///< srun
  };
  Launcher launcher;
  int rank;
  int world_size;
  int local_rank;        ///< the rank if the launcher does not set it
  int local_world_size;  ///< the world size if the launcher does not set it
  bool one_machine;      ///< whether all ranks are known to be on this machine
};

/// Empty in a process that neither started, so also in a Slurm batch script. Ignores the variables
/// of lockstep run, torchrun and spawn (RANK and so on), which have precedence.
/// Errors: UsageError with variable and value if it is no integer.
std::optional<LaunchedPlace> launched_place();

/// This process's rank: RANK, else that of launched_place(). Empty without a launcher.
/// Errors: as launched_place().
std::optional<int> launched_rank();

}  // namespace lockstep::inline internal
