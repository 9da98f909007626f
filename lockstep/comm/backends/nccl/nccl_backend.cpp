#include "lockstep/comm/backends/nccl/nccl_backend.h"

#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {

int cuda_device_count() {
  return static_cast<int>(c10::cuda::device_count());
}

c10::Device nccl_device(int local_rank) {
  const int devices = cuda_device_count();
  if (local_rank >= devices) {
    throw UsageError(concat("backend nccl: local rank ", local_rank,
                            " has no CUDA device, this machine shows ", devices,
                            "; start fewer processes per machine, or use backend gloo"));
  }
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(local_rank)};
}

BackendInstance make_nccl_backend(const BackendConfig& config) {
  c10::cuda::set_device(nccl_device(config.local_rank).index());
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = config.timeout;
  options->group_name = config.group_name;
  return {.backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(config.store, config.rank,
                                                                 config.world_size, options)};
}

}  // namespace lockstep::inline internal
