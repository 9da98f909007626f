#pragma once

#include <vector>

#include "lockstep/comm/backends/hierarchical/machines.h"

namespace lockstep::hierarchical {

/// A chunk that a rank passes to ranks of its machine, or gets from one of them. Chunks have the
/// numbers of the ranks of the group that they belong to.
struct LocalMove {
  int chunk = 0;
  int part = 0;   ///< of the sender's slots
  int peer = -1;  ///< local index of the sender; -1: this rank sends it, or all ranks do

  bool operator==(const LocalMove&) const = default;
};

/// What a rank does in a collective of its machine.
struct LocalStep {
  bool happens = false;  ///< the same on all ranks of the machine
  int parts = 1;         ///< of each slot; the same on all ranks of the machine
  std::vector<LocalMove> outgoing = {};
  std::vector<LocalMove> incoming = {};
  std::vector<LocalMove> summed = {};  ///< over the ranks of the machine
};

/// How one rank takes part in an all-gather or a reduce-scatter over machines. Each chunk is
/// exchanged between machines by the rank that carries it, one of those with a share: so each
/// machine gets each chunk, or each sum of a machine, once, and all its ranks with a share exchange
/// at the same time.
struct ChunkPlan {
  LocalStep before;
  /// By machine, the chunks of its ranks that this rank carries. In an all-gather it sends those of
  /// its own machine to each other machine, and receives each other machine's. In a reduce-scatter
  /// it sends each other machine the sums of that machine's, and receives sums of its own machine's
  /// from each. Empty if it has no share.
  std::vector<std::vector<int>> carried = {};
  LocalStep after;
};

/// After it each rank has all chunks.
ChunkPlan plan_all_gather(const Machines& machines);

/// After it each rank has the sum of its chunk. Ranks are summed in order within a machine,
/// machines in order: as by an all-reduce.
ChunkPlan plan_reduce_scatter(const Machines& machines);

}  // namespace lockstep::hierarchical
