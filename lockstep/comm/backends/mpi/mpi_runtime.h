#pragma once

#include <mutex>
#include <string>

#include <mpi.h>

#include "lockstep/base/internal/deadline.h"

/// This process's MPI, shared by all groups.
/// Threads: MPI is asked for MPI_THREAD_SERIALIZED and no more, so every call is made under the
/// lock. Errors: std::runtime_error with MPI's own text, which the caller of a collective puts its
/// name to; UsageError where MPI cannot serve at all.
namespace lockstep::mpi {

/// Held around every call of MPI.
std::unique_lock<std::mutex> lock();

/// Initialises MPI unless somebody has. What is initialised here is finalised when the process ends
/// with exit code 0; with another code peers may not come to a finalisation, and the launcher
/// learns of the failure by the exit. Needs the lock.
void ensure_running();

/// Throws unless `status` is MPI_SUCCESS.
void check(int status, const char* call);

/// Of MPI_COMM_WORLD. Need the lock and a running MPI.
int world_rank();
int world_size();

}  // namespace lockstep::mpi
