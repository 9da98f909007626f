#include "lockstep/base/error.h"
#include "lockstep/base/internal/check.h"
#include "lockstep/comm/backends/mpi/mpi_backend.h"

// Stands in for mpi_backend.cpp where no MPI was found.
namespace lockstep::inline internal {
namespace {

[[noreturn]] void refuse_mpi() {
  throw UsageError(
      "backend mpi: this build has no MPI; install one (libopenmpi-dev or libmpich-dev), configure "
      "again with -DLOCKSTEP_WITH_MPI=ON and rebuild, or use another backend");
}

}  // namespace

c10::Device mpi_device(int) {
  refuse_mpi();
}

std::shared_ptr<NativeBackend> make_mpi_backend(const BackendConfig&) {
  refuse_mpi();
}

MpiLibrary mpi_library() {
  return MpiLibrary::kNone;
}

// Ranks are never told to meet through an MPI that there is not.
std::string broadcast_by_mpi(std::string, int, const Deadline&) {
  refuse_mpi();
}

}  // namespace lockstep::inline internal
