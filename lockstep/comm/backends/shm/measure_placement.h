#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/comm/backends/shm/team.h"
#include "lockstep/os/machine/core_distance.h"

namespace lockstep::shm {

/// How far rank 1 is from rank 0, the same answer on all ranks. For ranks that have a core each;
/// takes 20 ms at most. Collective. Errors: TimeoutError at the deadline; c10::Error when the store
/// is lost.
Placement measure_placement(Team& team, c10d::Store& store, Deadline deadline);

}  // namespace lockstep::shm
