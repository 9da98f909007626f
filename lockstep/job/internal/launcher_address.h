#pragma once

#include <string>

#include "lockstep/job/internal/launched_place.h"

namespace lockstep::inline internal {

/// The store through which the ranks of a group meet.
enum class RendezvousStore {
  kNone,   ///< one process: no store
  kTcp,    ///< at host:port
  kFile,   ///< at path
  kGiven,  ///< the caller's
  kMpi,    ///< TCP at an address that rank 0 chooses and broadcasts through MPI
  kPmi,    ///< the same through MPICH's mpirun, without MPI
};

/// The MPI of this build. Ranks can meet through it if its own mpirun started them.
enum class MpiLibrary { kNone, kOpenMpi, kOther };

/// Where ranks that mpirun or srun started meet.
struct LauncherAddress {
  RendezvousStore store = RendezvousStore::kNone;
  std::string host = {};  ///< of a TCP store
  int port = 0;
  /// Variables from which host and port were derived; empty: the user set them.
  std::string source = {};
};

/// The first of: MASTER_ADDR and MASTER_PORT; under srun the first machine of the step, with a port
/// derived from job and step (one of the two may be set); this build's MPI, if mpirun is its own;
/// MPICH's mpirun itself; on one machine a port derived from Open MPI's job name.
/// Errors: UsageError with what to set, if none of these is possible.
LauncherAddress launcher_address(const LaunchedPlace& place, MpiLibrary mpi);

}  // namespace lockstep::inline internal
