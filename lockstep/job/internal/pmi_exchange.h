#pragma once

#include <string>

#include "lockstep/base/internal/deadline.h"

namespace lockstep::inline internal {

/// Returns rank 0's `text` on all ranks, through the mpirun of MPICH and its derivatives, by PMI
/// version 1 on `fd` (PMI_FD). Needs no MPI in this build. Once per process: it closes the
/// connection, as mpirun requires before a rank ends. `text`: up to 255 printable bytes without
/// space and '='. `operation`: for errors.
/// Errors: TimeoutError at the deadline, CommError with mpirun's reply.
std::string broadcast_by_pmi(const std::string& operation, int fd, int rank,
                             const std::string& text, const Deadline& deadline);

}  // namespace lockstep::inline internal
