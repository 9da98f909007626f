#pragma once

#include "lockstep/launch/core_binding.h"
#include "lockstep/launch/launch_options.h"

namespace lockstep {

/// plan_core_binding() on this machine, with the GPUs that CUDA_VISIBLE_DEVICES leaves.
/// Errors: UsageError.
BindingPlan bind_workers(const LaunchOptions& options);

}  // namespace lockstep
