#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/os/machine/cpu_topology.h"

namespace lockstep::inline internal {

/// Which processors each worker is bound to (torchrun's --numa-binding).
enum class NumaBinding {
  kNone,
  kNode,         ///< the processors of its GPU's NUMA node
  kSocket,       ///< the processors of that node's socket
  kExclusive,    ///< cores of that node that no other worker has
  kCoreComplex,  ///< cores of that node that share a last-level cache, exclusive if there are
                 ///< enough caches
};

/// Parses node, socket, exclusive or core-complex.
/// Errors: UsageError.
NumaBinding parse_numa_binding(const std::string& text);

/// Processors of each worker, by local rank; empty: workers are not bound.
using BindingPlan = std::vector<std::vector<int>>;

/// Plans the processors of each of `worker_count` workers, by local rank. `cpus`: the processors
/// that this process may use. `gpu_nodes`: the NUMA node of each GPU that workers see; worker i
/// uses GPU i. With fewer GPUs than workers the GPUs are ignored, and workers are distributed over
/// the nodes in order of local rank, by the number of cores there. Hardware threads of a core stay
/// together. Empty for kNone.
/// Errors: UsageError if a worker would get no processor.
BindingPlan plan_core_binding(NumaBinding binding, const std::vector<CpuPlace>& cpus,
                              const std::vector<int>& gpu_nodes, int worker_count);

/// Processors of one worker; empty: it is not bound.
std::vector<int> processors_of(const BindingPlan& plan, int local_rank);

/// Number of compute threads for a worker: its share of the time of `usable_cpus` processors, at
/// most its share of the processors that it is bound to. At least 1.
int thread_share(const BindingPlan& plan, int local_rank, int worker_count, int usable_cpus);

}  // namespace lockstep::inline internal
