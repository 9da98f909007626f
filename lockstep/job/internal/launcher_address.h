#pragma once

#include <string>

#include "lockstep/job/internal/launched_place.h"

namespace lockstep::inline internal {

/// Through what the ranks of a group meet.
enum class MeetingStore {
  kNone,   ///< one process: nothing to meet through
  kTcp,    ///< at host:port
  kFile,   ///< at path
  kGiven,  ///< the caller's
  kMpi,    ///< at an address that rank 0 chooses and tells the others through MPI
  kPmi,    ///< the same through MPICH's mpirun, without MPI
};

/// The MPI that this build has: its ranks can meet through it when its own mpirun started them.
enum class MpiLibrary { kNone, kOpenMpi, kOther };

/// Where ranks meet that mpirun or srun started.
struct LauncherAddress {
  MeetingStore store = MeetingStore::kNone;
  std::string host = {};  ///< of a TCP store
  int port = 0;
  /// The variables that host and port were worked out from; empty where a user set them.
  std::string source = {};
};

/// In this order: at MASTER_ADDR and MASTER_PORT; under srun at the first machine of the step, with
/// a port that the numbers of job and step stand for (one of the two may be set); through the MPI
/// of this build if it is that of the mpirun; through MPICH's mpirun itself; on one machine at a
/// port that Open MPI's name of the job stands for.
/// Errors: UsageError that says what to set where none of these can be had.
LauncherAddress launcher_address(const LaunchedPlace& place, MpiLibrary mpi);

}  // namespace lockstep::inline internal
