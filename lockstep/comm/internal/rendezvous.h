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

/// For a plan whose ranks meet through mpirun, by MPI or without it: makes it one with a TCP store
/// at a free port that rank 0 chose. On rank 0 the plan's listen_fd is bound to it, by the socket
/// that is returned, if one is: it must outlive open_store.
/// Errors: those of broadcast_by_mpi, with the rank's name in front, and of broadcast_by_pmi.
UniqueFd meet_by_launcher(InitPlan& plan, const Deadline& deadline);

/// Opens the plan's store: serves it on rank 0 where the plan says so, else connects as soon as it
/// is served. Errors: TimeoutError when nobody serves it in time; SystemError when the port is
/// taken.
c10::intrusive_ptr<c10d::Store> open_store(const InitPlan& plan, const Deadline& deadline);

/// Returns when every rank of the plan's world has joined through `store`. `tell` sets what the
/// others may read from it as soon as that is so.
/// Errors: PeerLost when the store is lost; TimeoutError naming the ranks that did not come;
/// UsageError when a rank is there twice or ranks disagree on the world size.
void join_world(c10d::Store& store, const InitPlan& plan, const Deadline& deadline,
                const std::function<void()>& tell);

}  // namespace lockstep::inline internal
