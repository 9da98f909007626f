#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include "lockstep/snapshot/state_dict.h"

namespace lockstep::inline internal {

enum class SnapshotKind {
  kWhole,
  kSharded,
  kStateDict,
  kSafetensors,
  kShardedSafetensors,
  kDistributed
};

/// "file", "sharded", "state dict", "safetensors", "sharded safetensors" or "distributed".
const char* kind_name(SnapshotKind kind);

/// A snapshot, or weights of another program.
struct InspectedSnapshot {
  SnapshotKind kind = SnapshotKind::kWhole;
  std::filesystem::path path;
  std::uint64_t size_bytes = 0;  ///< of all its files
  /// The dict in it, as torch.load returns it; of folders of other programs the weights.
  c10::IValue tree;
  std::map<std::string, std::string> metadata = {};  ///< only of safetensors

  bool is_snapshot() const {
    return kind == SnapshotKind::kWhole || kind == SnapshotKind::kSharded;
  }

  /// All tensors by their path in the tree: "model.first.weight".
  TensorDict tensors() const;
  /// The weights by the module's names, without Python's "module.".
  TensorDict weights() const;
};

/// Reads and verifies all of it. Errors: as load_snapshot, load, read_safetensors; UsageError for a
/// directory of snapshots.
InspectedSnapshot read_inspected(const std::filesystem::path& path);

/// The sum of its files' sizes. Errors: SystemError.
std::uint64_t size_on_disk(const std::filesystem::path& path);

}  // namespace lockstep::inline internal
