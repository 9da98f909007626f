#include "lockstep/comm/backends/nccl/nccl_backend.h"

#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/internal/c10d_backend.h"

namespace lockstep::inline internal {
namespace {

class NativeNccl final : public C10dBackend {
 public:
  NativeNccl(c10::intrusive_ptr<c10d::Backend> nccl, c10::Device device)
      : C10dBackend(std::move(nccl)), device_(device) {}

  bool takes_cuda() const override { return true; }

  WorkPtr barrier(const CallTerms& terms) override {
    c10d::BarrierOptions options;
    options.timeout = terms.timeout;
    options.device = device_;
    return c10d().barrier(options);
  }

 private:
  const c10::Device device_;
};

}  // namespace

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

std::shared_ptr<NativeBackend> make_nccl_backend(const BackendConfig& config) {
  const c10::Device device = nccl_device(config.local_rank);
  c10::cuda::set_device(device.index());
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = config.timeout;
  options->group_name = config.group_name;
  return std::make_shared<NativeNccl>(c10::make_intrusive<c10d::ProcessGroupNCCL>(
                                          config.store, config.rank, config.world_size, options),
                                      device);
}

}  // namespace lockstep::inline internal
