#pragma once

#include <optional>

namespace lockstep::inline internal {

/// The place in the job that mpirun or srun gave this process, as the environment says.
struct LaunchedPlace {
  enum class Launcher {
    kOpenMpi,  ///< Open MPI's mpirun
    kPmi,      ///< the mpirun of MPICH and its kin
    kSlurm,    ///< srun
  };
  Launcher launcher;
  int rank;
  int world_size;
  int local_rank;        ///< the rank where the launcher does not tell it
  int local_world_size;  ///< the world size where the launcher does not tell it
  bool one_machine;      ///< whether all ranks are known to be on this machine
};

/// Nothing in a process that neither started, so also in a batch script of Slurm's. What lockstep
/// run, torchrun and spawn set (RANK and so on) is not looked at, and counts more.
/// Errors: UsageError naming the variable and its value when it is no integer.
std::optional<LaunchedPlace> launched_place();

/// This process's rank by whichever launcher started it: RANK, else that of launched_place().
/// Nothing without a launcher. Errors: as launched_place().
std::optional<int> launched_rank();

}  // namespace lockstep::inline internal
