#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/backends/hierarchical/chunk_plan.h"
#include "lockstep/comm/backends/hierarchical/machines.h"
#include "lockstep/comm/backends/hierarchical/piece_steps.h"
#include "lockstep/comm/backends/shm/layout.h"
#include "lockstep/comm/backends/shm/tensor_piece.h"
#include "lockstep/comm/reduce_op.h"

/// The collectives over machines, divided into pieces.
namespace lockstep::hierarchical {

using Pieces = std::vector<std::unique_ptr<PieceSteps>>;

/// What the pieces of all collectives of a group refer to.
struct Site {
  Machines machines;
  int rank = 0;
  int ranks = 1;
  ShareExchange* exchange = nullptr;  ///< null if this rank has no share
  ChunkPlan all_gather = {};
  ChunkPlan reduce_scatter = {};
};

/// Ranges of a tensor, or of each of `chunks` chunks of that size, of which each is a piece: large
/// enough that a step takes longer than to start it, small enough that pieces overlap. One range of
/// nothing for nothing.
std::vector<shm::Range> piece_ranges(std::uint64_t bytes, int chunks = 1);

/// A reduce-scatter within the machine leaves the machine's sum of a share with each local rank.
/// The ranks of one local index exchange and sum their shares. An all-gather within the machine
/// copies the shares to all local ranks.
Pieces all_reduce_pieces(const Site& site, const at::Tensor& tensor, ReduceOp op);

/// The same without the steps within the machine: sums what the ranks of one local index have.
Pieces sum_pieces(const Site& site, const at::Tensor& tensor);

/// The ranks of a machine meet.
Pieces machine_barrier_pieces();

/// The source's machine broadcasts, and the ranks of one local index broadcast their shares. On the
/// other machines an all-gather copies the shares to all local ranks.
Pieces broadcast_pieces(const Site& site, const at::Tensor& tensor, int source);

/// As planned by plan_all_gather. `outputs`: by rank.
Pieces all_gather_pieces(const Site& site, const std::vector<shm::Piece>& outputs,
                         const shm::Piece& input);

/// As planned by plan_reduce_scatter. `inputs`: by rank.
Pieces reduce_scatter_pieces(const Site& site, const shm::Piece& output,
                             const std::vector<shm::Piece>& inputs, ReduceOp op);

}  // namespace lockstep::hierarchical
