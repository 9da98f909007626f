#pragma once

#include "lockstep/comm/internal/backend_factory.h"

namespace lockstep::inline internal {

/// LibTorch's NCCL, for CUDA tensors on the CUDA device of the local rank. Only in builds against a
/// CUDA build of LibTorch.
/// Errors: as nccl_device.
std::shared_ptr<NativeBackend> make_nccl_backend(const BackendConfig& config);

/// The CUDA device of a local rank.
/// Errors: UsageError if it does not exist.
c10::Device nccl_device(int local_rank);

/// Number of CUDA devices that this process sees; 0 without a driver.
int cuda_device_count();

}  // namespace lockstep::inline internal
