#pragma once

#include "lockstep/comm/internal/backend_factory.h"

namespace lockstep::inline internal {

/// The system's MPI, for CPU tensors and processes that mpirun, mpiexec or srun started. Only in
/// builds that found an MPI. Reductions are formed here, in rank order: the same bits on all ranks.
/// Nothing moves but while a rank of the job waits for a collective, asks whether one is complete
/// or starts another. A death is noticed by the launcher, which ends the job. Errors: UsageError
/// when MPI sees fewer processes than the job has ranks; else as Work::wait.
std::shared_ptr<NativeBackend> make_mpi_backend(const BackendConfig& config);

/// The CPU.
c10::Device mpi_device(int local_rank);

}  // namespace lockstep::inline internal
