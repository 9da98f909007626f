#include "lockstep/comm/backends/nccl/nccl_backend.h"

#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"

namespace lockstep {

int cuda_device_count() {
  return static_cast<int>(c10::cuda::device_count());
}

BackendInstance make_nccl_backend(const BackendConfig& config) {
  const int devices = cuda_device_count();
  if (config.local_rank >= devices) {
    throw UsageError(concat("backend nccl: local rank ", config.local_rank,
                            " has no CUDA device, this machine shows ", devices,
                            "; start fewer processes per machine, or use backend gloo"));
  }
  const auto index = static_cast<c10::DeviceIndex>(config.local_rank);
  c10::cuda::set_device(index);
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = config.timeout;
  options->group_name = config.group_name;
  return {c10::make_intrusive<c10d::ProcessGroupNCCL>(config.store, config.rank, config.world_size,
                                                      options),
          c10::Device(c10::kCUDA, index), true};
}

}  // namespace lockstep
