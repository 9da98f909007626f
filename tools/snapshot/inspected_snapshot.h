#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include "lockstep/snapshot/state_dict.h"

namespace lockstep::inline internal {

/// What a path that somebody named can be.
enum class SnapshotKind { kWhole, kSharded, kStateDict, kSafetensors };

/// "file", "sharded", "state dict" or "safetensors".
const char* kind_name(SnapshotKind kind);

/// A snapshot, or weights of another program, read for people to look at.
struct InspectedSnapshot {
  SnapshotKind kind = SnapshotKind::kWhole;
  std::filesystem::path path;
  std::uint64_t size_bytes = 0;  ///< Of the file, or of all that the manifest names.
  c10::IValue tree;              ///< The dict in it; as torch.load gives it.
  std::map<std::string, std::string> metadata = {};  ///< Of safetensors.

  bool is_snapshot() const {
    return kind == SnapshotKind::kWhole || kind == SnapshotKind::kSharded;
  }

  /// All tensors by where they stand: "model.first.weight". Those of weights alone by their names.
  TensorDict tensors() const;
  /// The weights by the module's names, without Python's "module.".
  TensorDict weights() const;
};

/// Reads and verifies all of it. Errors: as load_snapshot, load, read_safetensors; UsageError for a
/// directory that is no sharded snapshot, saying which snapshots it has.
InspectedSnapshot read_inspected(const std::filesystem::path& path);

/// The sum of its files' sizes, without reading them. Errors: SystemError.
std::uint64_t size_on_disk(const std::filesystem::path& path);

}  // namespace lockstep::inline internal
