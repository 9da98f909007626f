#pragma once

#include "launcher/job/core_binding.h"
#include "launcher/job/launch_options.h"

namespace lockstep::inline internal {

/// plan_core_binding() on this machine, with the GPUs that CUDA_VISIBLE_DEVICES leaves.
/// Errors: UsageError.
BindingPlan bind_workers(const LaunchOptions& options);

}  // namespace lockstep::inline internal
