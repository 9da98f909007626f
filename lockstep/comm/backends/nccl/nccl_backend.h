#pragma once

#include "lockstep/comm/backend_factory.h"

namespace lockstep {

/// LibTorch's NCCL, for CUDA tensors; the rank uses the CUDA device of its local rank.
/// Only in builds against a CUDA build of LibTorch.
/// Errors: UsageError when this machine has no CUDA device for the local rank.
BackendInstance make_nccl_backend(const BackendConfig& config);

/// Number of CUDA devices that this process sees; 0 without a driver.
int cuda_device_count();

}  // namespace lockstep
