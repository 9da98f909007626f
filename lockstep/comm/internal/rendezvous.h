#pragma once

#include <functional>

#include <c10/util/intrusive_ptr.h>

#include "lockstep/base/internal/deadline.h"
#include "lockstep/comm/internal/init_plan.h"
#include "lockstep/os/files/unique_fd.h"

namespace c10d {
class Store;
}

namespace lockstep::inline internal {

/// For ranks that find each other through mpirun, with or without MPI: replaces the plan's store by
/// a TCP store at a free port that rank 0 chose. The returned socket, if valid, is bound to that
/// port on rank 0, is the plan's listen_fd, and must outlive open_store.
/// Errors: those of broadcast_by_mpi, with the rank, and of broadcast_by_pmi.
UniqueFd meet_by_launcher(InitPlan& plan, const Deadline& deadline);

/// Opens the plan's store: serves it on rank 0 if the plan says so, else connects when it is
/// served.
/// Errors: TimeoutError if it is not served in time; SystemError if the port is in use.
c10::intrusive_ptr<c10d::Store> open_store(const InitPlan& plan, const Deadline& deadline);

/// Returns when every rank of the plan's world has joined through `store`. `tell` sets what other
/// ranks may read from then on.
/// Errors: PeerLost if the store is lost; TimeoutError with the missing ranks; UsageError if a rank
/// joins twice or ranks disagree on the world size.
void join_world(c10d::Store& store, const InitPlan& plan, const Deadline& deadline,
                const std::function<void()>& tell);

}  // namespace lockstep::inline internal
