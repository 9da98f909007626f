#pragma once

#include <string>

#include "lockstep/base/internal/deadline.h"

namespace lockstep::inline internal {

/// `text` of rank 0, on all ranks, through the mpirun of MPICH and its kin: `fd` (PMI_FD) leads to
/// it, and it speaks version 1 of PMI. Needs no MPI in this build. Once a process: the connection
/// ends with it, as mpirun wants it done before a rank ends. `text`: up to 255 printable bytes but
/// space and '='.
/// `operation`: for errors. Errors: TimeoutError at the deadline, CommError with mpirun's reply.
std::string broadcast_by_pmi(const std::string& operation, int fd, int rank,
                             const std::string& text, const Deadline& deadline);

}  // namespace lockstep::inline internal
