#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/os/machine/cpu_topology.h"

namespace lockstep::inline internal {

/// What each worker is bound to (torchrun's --numa-binding).
enum class NumaBinding {
  kNone,
  kNode,         ///< the processors of the NUMA node of its GPU
  kSocket,       ///< those of the socket of that node
  kExclusive,    ///< a share of the node's cores that is its own
  kCoreComplex,  ///< cores of the node that share a last-level cache, its own where there are
                 ///< enough
};

/// Reads node, socket, exclusive or core-complex. Errors: UsageError.
NumaBinding parse_numa_binding(const std::string& text);

/// Processors by local rank; empty: workers are not bound.
using BindingPlan = std::vector<std::vector<int>>;

/// The processors of each of `worker_count` workers of a machine, by local rank: of `cpus`, those
/// that this process may use. `gpu_nodes` are the NUMA nodes of the GPUs that workers see, of which
/// worker i has GPU i. With fewer GPUs than workers, none of them counts: the workers are spread
/// over the nodes in the order of their local ranks, by the number of cores there.
/// Hardware threads of a core stay together. Empty for kNone.
/// Errors: UsageError where a worker would have no processor.
BindingPlan plan_core_binding(NumaBinding binding, const std::vector<CpuPlace>& cpus,
                              const std::vector<int>& gpu_nodes, int worker_count);

/// Those of one worker; empty: it is not bound.
std::vector<int> processors_of(const BindingPlan& plan, int local_rank);

/// How many threads worker `local_rank` should compute with: its part of the time of
/// `usable_cpus` processors, and no more than its part of those that it is bound to. At least 1.
int thread_share(const BindingPlan& plan, int local_rank, int worker_count, int usable_cpus);

}  // namespace lockstep::inline internal
