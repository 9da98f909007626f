#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include "lockstep/snapshot/sharded/snapshot_manifest.h"
#include "lockstep/snapshot/snapshot.h"

/// How a snapshot is parted among the ranks that write it, and put together again.
namespace lockstep::inline internal {

/// Whether each rank has the state of all parameters, or, of a sharded optimizer, its own alone.
enum class StatePlacement { kReplicated, kOwn };

/// The bytes of each tensor that every rank has: the model's, and the optimizer's where replicated.
std::vector<std::uint64_t> replicated_bytes(const Snapshot& snapshot, StatePlacement optimizer);

/// The bytes of the tensors that this rank alone has.
std::uint64_t own_bytes(const Snapshot& snapshot, StatePlacement optimizer);

/// What `rank` writes: of the tensors of replicated_bytes() those that `owners` gives to it, and
/// all that it alone has. Tensors that are part of a larger storage are copied out of it.
Snapshot share_of(Snapshot snapshot, StatePlacement optimizer, const std::vector<int>& owners,
                  int rank);

/// The snapshot that was parted so. `shares`: by rank. Model names in the order of the manifest.
Snapshot join_shares(std::vector<Snapshot> shares, const SnapshotManifest& manifest);

/// The tensors of a tree as a manifest names them, of file 0.
std::vector<ManifestTensor> described_tensors(const c10::IValue& tree);

/// Which rank writes each tensor that all ranks have, so that all write about as many bytes: the
/// largest first, each to the rank that has the fewest so far. `kept_bytes`: by rank, what it
/// writes in any case. The same on every rank for the same numbers.
std::vector<int> plan_shares(const std::vector<std::uint64_t>& tensor_bytes,
                             std::vector<std::uint64_t> kept_bytes);

}  // namespace lockstep::inline internal
