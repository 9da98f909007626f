#pragma once

#include <memory>
#include <vector>

#include "lockstep/comm/backends/hierarchical/machines.h"
#include "lockstep/comm/backends/shm/operation.h"
#include "lockstep/comm/backends/shm/tensor_piece.h"
#include "lockstep/comm/reduce_op.h"

namespace lockstep::hierarchical {

/// The stages of an all-reduce within a machine. Local ranks beyond the number of shares have none:
/// they give to the sums and get the results.
struct LocalShares {
  shm::Piece whole;
  std::vector<shm::Piece> shares;  ///< that of the local rank with this index
  int local_index = 0;
};

LocalShares local_shares(const Machines& machines, const shm::Piece& whole);

/// Leaves in each local rank's share the sum over the machine. An average is one between machines,
/// here it is a sum.
std::unique_ptr<shm::Operation> make_reduce_scatter(const LocalShares& shares, ReduceOp op);

/// Copies each local rank's share to all.
std::unique_ptr<shm::Operation> make_all_gather(const LocalShares& shares);

}  // namespace lockstep::hierarchical
