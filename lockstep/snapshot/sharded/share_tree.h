#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include "lockstep/snapshot/sharded/snapshot_manifest.h"
#include "lockstep/snapshot/snapshot.h"

/// How a snapshot is divided among the ranks that write it, and put together again.
namespace lockstep::inline internal {

/// Whether each rank holds the state of all parameters, or only its own shard (a sharded
/// optimizer).
enum class StatePlacement : int { kReplicated, kSharded };

/// Bytes of each tensor that every rank holds: the model's, and the optimizer's if replicated.
std::vector<std::uint64_t> replicated_bytes(const Snapshot& snapshot, StatePlacement optimizer);

/// Bytes of the tensors that only this rank holds.
std::uint64_t own_bytes(const Snapshot& snapshot, StatePlacement optimizer);

/// The shard that `rank` writes: those tensors of replicated_bytes() that `owners` assigns to it,
/// and all that only it holds. Tensors that are part of a larger storage are copied out of it.
Snapshot share_of(Snapshot snapshot, StatePlacement optimizer, const std::vector<int>& owners,
                  int rank);

/// Puts a snapshot together from its shards, by rank. Model names are in the order of the manifest.
Snapshot join_shares(std::vector<Snapshot> shares, const SnapshotManifest& manifest);

/// The tensors of a tree as a manifest describes them, in file 0.
std::vector<ManifestTensor> described_tensors(const c10::IValue& tree);

/// Assigns each tensor that all ranks hold to the rank that writes it, so that all write about
/// equally many bytes: largest first, each to the rank with the fewest bytes so far. The same on
/// every rank.
/// `kept_bytes`: by rank, the bytes that it writes in any case.
std::vector<int> plan_shares(const std::vector<std::uint64_t>& tensor_bytes,
                             std::vector<std::uint64_t> kept_bytes);

}  // namespace lockstep::inline internal
