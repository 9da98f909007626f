#pragma once

#include "lockstep/comm/internal/backend_factory.h"

namespace lockstep::inline internal {

/// The system's MPI, for CPU tensors and processes that mpirun, mpiexec or srun started; only in
/// builds that found an MPI. Reductions are computed here, in rank order: the same bits on all
/// ranks. Calls advance only while a rank waits for a collective, polls one or starts another. The
/// launcher notices a killed rank and ends the job.
/// Errors: UsageError if MPI has fewer processes than the job has ranks; else as Work::wait.
std::shared_ptr<NativeBackend> make_mpi_backend(const BackendConfig& config);

/// The CPU.
c10::Device mpi_device(int local_rank);

}  // namespace lockstep::inline internal
