#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/snapshot/internal/checksum.h"

namespace lockstep::inline internal {

/// Name of the manifest in the snapshot's directory.
inline constexpr const char* kManifestName = "manifest.json";

/// A file of a sharded snapshot.
struct ManifestFile {
  std::string name;  ///< in the snapshot's directory: "rank0-of-4-….pt"
  FileDigest digest;
};

/// A tensor of a sharded snapshot.
struct ManifestTensor {
  std::string name;      ///< path in the snapshot: "model.first.weight"
  std::size_t file = 0;  ///< index in SnapshotManifest::files
  std::string dtype;     ///< Python's name: "float32"
  std::vector<std::int64_t> shape;

  bool operator==(const ManifestTensor&) const = default;
};

/// Content of a sharded snapshot. It is written last: without it there is no snapshot. Each rank
/// leaves the manifest of its own file for rank 0, which puts them together.
struct SnapshotManifest {
  std::string save_id;  ///< of rank 0, unique for each save
  std::int64_t epoch = 0;
  std::int64_t step = 0;
  std::int64_t world_size = 1;
  std::vector<ManifestFile> files = {};  ///< by rank
  /// The model's in its order, then the others; those of a file in the file's order.
  std::vector<ManifestTensor> tensors = {};
};

/// JSON whose last entry is the XXH3-128 of the text before it.
std::string manifest_text(const SnapshotManifest& manifest);

/// Parsing n bytes of a manifest takes at most kAnyManifestBytes + n * kManifestBytesAByte bytes;
/// nested '[' need the most memory per byte.
inline constexpr std::uint64_t kManifestBytesAByte = 128;
inline constexpr std::uint64_t kAnyManifestBytes = std::uint64_t{1} << 20;

/// Parses a manifest.
/// `source`: for error messages.
/// Errors: CorruptFile if any bit of the text has changed; UsageError for a newer format.
SnapshotManifest parse_manifest(std::string_view text, const std::string& source);

/// Reads and parses a manifest.
/// Errors: as parse_manifest; SystemError.
SnapshotManifest read_manifest(const std::filesystem::path& path);

}  // namespace lockstep::inline internal
