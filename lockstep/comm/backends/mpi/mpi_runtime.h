#pragma once

#include <mutex>
#include <string>

#include <mpi.h>

#include "lockstep/base/internal/deadline.h"

/// This process's MPI, shared by all groups.
/// Threads: MPI is initialized with MPI_THREAD_SERIALIZED, so every call is made under the lock.
/// Errors: std::runtime_error with MPI's own text, to which the caller adds the collective;
/// UsageError if MPI is unusable.
namespace lockstep::mpi {

/// Hold it for every call of MPI.
std::unique_lock<std::mutex> lock();

/// Initializes MPI unless the program has. If initialized here, it is finalized when the process
/// exits with code 0; with another code peers may not reach a finalization, and the launcher
/// notices the failure by the exit. Call it with the lock held.
void ensure_running();

/// Throws unless `status` is MPI_SUCCESS.
void check(int status, const char* call);

/// Rank and size of MPI_COMM_WORLD. Call them with the lock held, after ensure_running().
int world_rank();
int world_size();

}  // namespace lockstep::mpi
