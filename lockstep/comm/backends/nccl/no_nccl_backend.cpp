#include "lockstep/base/error.h"
#include "lockstep/base/internal/check.h"
#include "lockstep/comm/backends/nccl/nccl_backend.h"

// Stands in for nccl_backend.cpp where LibTorch is a CPU build.
namespace lockstep::inline internal {

int cuda_device_count() {
  return 0;
}

c10::Device nccl_device(int) {
  throw UsageError(
      "backend nccl: this LibTorch is a CPU build; use backend gloo, or build against a CUDA "
      "build");
}

std::shared_ptr<NativeBackend> make_nccl_backend(const BackendConfig& config) {
  nccl_device(config.local_rank);
  LOCKSTEP_ASSERT(false);
}

}  // namespace lockstep::inline internal
