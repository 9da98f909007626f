#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/fully_shard/sharded_module.h"

namespace lockstep::inline internal {

/// The ranks of a sharded module as a grid of replicas and shards. Each rank is in one group of
/// either kind.
struct ShardMesh {
  ProcessGroup shard;           ///< the ranks of a replica, of which each holds a shard
  ProcessGroup replicate = {};  ///< the ranks that hold the same shard; empty: one replica

  /// Whether this rank is the first of the grid.
  bool is_first() const;
  /// Overwrites the tensors with those of the first rank. Collective.
  void broadcast(const std::vector<at::Tensor>& tensors) const;
  /// Runs `check`, which compares the ranks of a group, so that it compares all ranks. Collective.
  /// Errors: those of the check; PeerFailed where it fails on other ranks.
  void check_everywhere(const std::function<void(const ProcessGroup&)>& check) const;
};

/// Of this rank and its neighbours: ranks 0 to `size` - 1 of the group are one, and so on.
/// Collective.
ProcessGroup consecutive_ranks(const ProcessGroup& group, int size);

/// From now on a rank that gives up in one of these groups does so in all: nobody waits for it in
/// another. `reshard`: of consecutive_ranks; may be empty. Collective.
void link_groups(const ShardMesh& mesh, const ProcessGroup& reshard);

/// The mesh of the options. Collective; with `hybrid_shard` it creates groups, over any backend.
/// Errors: UsageError for groups that are no grid, and for machines with different numbers of ranks
/// with `hybrid_shard`; as ProcessGroup::new_group.
ShardMesh shard_mesh_of(const FullyShardOptions& options);

}  // namespace lockstep::inline internal
