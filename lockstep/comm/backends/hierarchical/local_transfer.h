#pragma once

#include <memory>
#include <vector>

#include "lockstep/comm/backends/hierarchical/machines.h"
#include "lockstep/comm/backends/shm/operation.h"
#include "lockstep/comm/backends/shm/tensor_piece.h"
#include "lockstep/comm/reduce_op.h"

namespace lockstep::hierarchical {

/// Shares of a tensor among a machine's ranks. Ranks beyond the number of shares have none: they
/// only contribute to the sums and get the results.
struct LocalShares {
  shm::Piece whole;
  std::vector<shm::Piece> shares;  ///< by local index
  int local_index = 0;
};

/// Divides a tensor into shares.
LocalShares local_shares(const Machines& machines, const shm::Piece& whole);

/// Leaves in each local rank's share the sum over the machine. For kAvg too: the average is formed
/// between machines.
std::unique_ptr<shm::Operation> make_reduce_scatter(const LocalShares& shares, ReduceOp op);

/// Copies the whole tensor of one local rank to all ranks of the machine.
std::unique_ptr<shm::Operation> make_broadcast(const LocalShares& shares, int source);

/// Copies each local rank's share to all ranks of the machine, as the end of a collective of that
/// kind; `root`: its rank in the group, -1: none.
std::unique_ptr<shm::Operation> make_all_gather(const LocalShares& shares, shm::CallKind kind,
                                                int root = -1);

}  // namespace lockstep::hierarchical
