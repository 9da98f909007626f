#pragma once

#include <cstddef>
#include <vector>

#include <ATen/Parallel.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/os/machine/affinity.h"

namespace lockstep::bench {

/// Each rank computes on one thread, on a processor of its own where there are enough.
inline void use_one_processor(const ProcessGroup& group) {
  const std::vector<int> cpus = allowed_cpus();
  const auto rank = static_cast<std::size_t>(group.rank());
  if (static_cast<std::size_t>(group.world_size()) <= cpus.size()) pin_to_cpu(cpus[rank]);
  at::set_num_threads(1);
}

}  // namespace lockstep::bench
