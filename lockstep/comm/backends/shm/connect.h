#pragma once

#include <memory>
#include <string>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/base/internal/deadline.h"
#include "lockstep/comm/backends/shm/engine.h"
#include "lockstep/comm/backends/shm/team.h"
#include "lockstep/os/machine/core_distance.h"

namespace lockstep::shm {

/// Creates the segment of a group on rank 0 and passes it to the other ranks through a Unix socket;
/// each rank populates its arena. Returns when all ranks are connected. Collective.
/// Errors: BackendUnavailable, on all ranks; TimeoutError at the deadline; c10::Error if the store
/// is lost.
std::unique_ptr<Engine> connect(c10d::Store& store, int rank, int ranks,
                                const std::string& group_name, const Engine::Options& options,
                                Deadline deadline);

/// Measures the distance of rank 1 from rank 0; the same result on all ranks. For ranks that have a
/// core each; takes 20 ms at most. Collective.
/// Errors: TimeoutError at the deadline; c10::Error if the store is lost.
Placement measure_placement(Team& team, c10d::Store& store, Deadline deadline);

}  // namespace lockstep::shm
