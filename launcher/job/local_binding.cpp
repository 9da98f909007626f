#include "launcher/job/local_binding.h"

#include "lockstep/base/error.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/os/machine/affinity.h"
#include "lockstep/os/machine/gpu_nodes.h"

namespace lockstep::inline internal {

BindingPlan bind_workers(const LaunchOptions& options) {
  if (options.numa_binding == NumaBinding::kNone) return {};
  const std::vector<CpuPlace> cpus = read_cpu_places(allowed_cpus());
  if (cpus.empty()) {
    throw UsageError(
        "--numa-binding: the system does not tell which processors this process may run on; leave "
        "the flag out");
  }
  return plan_core_binding(
      options.numa_binding, cpus,
      visible_gpu_nodes(read_gpu_places(), env::text_or_empty(env::kCudaVisibleDevices)),
      options.worker_count);
}

}  // namespace lockstep::inline internal
