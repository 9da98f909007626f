#include "lockstep/comm/backends/mpi/mpi_runtime.h"

#include <cstdlib>
#include <stdexcept>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::mpi {
namespace {

std::mutex& the_mutex() {
  static auto* mutex = new std::mutex();  // Never destroyed: used until the process ends.
  return *mutex;
}

void finalize_at_exit(int exit_code, void*) {
  if (exit_code != 0) return;
  const auto locked = lock();
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized == 0) MPI_Finalize();
}

void require_threads(int level) {
  if (level >= MPI_THREAD_SERIALIZED) return;
  throw UsageError(
      "backend mpi: MPI was initialised for one thread only, but autograd's threads make calls "
      "too; "
      "call MPI_Init_thread with MPI_THREAD_SERIALIZED, or leave it to init_process_group");
}

}  // namespace

std::unique_lock<std::mutex> lock() {
  return std::unique_lock(the_mutex());
}

void ensure_running() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0) throw UsageError("backend mpi: MPI_Finalize was called already");
  int initialized = 0;
  MPI_Initialized(&initialized);
  int level = MPI_THREAD_SINGLE;
  if (initialized != 0) {
    check(MPI_Query_thread(&level), "MPI_Query_thread");
  } else {
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level), "MPI_Init_thread");
    ::on_exit(&finalize_at_exit, nullptr);
    check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }
  require_threads(level);
}

void check(int status, const char* call) {
  if (status == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(status, text, &length);
  throw std::runtime_error(concat(call, ": ", text));
}

int world_rank() {
  int rank = 0;
  check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
  return rank;
}

int world_size() {
  int size = 0;
  check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  return size;
}

}  // namespace lockstep::mpi
