#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/snapshot/internal/checksum.h"

namespace lockstep::inline internal {

inline constexpr const char* kManifestName = "manifest.json";

struct ManifestFile {
  std::string name;  ///< In the snapshot's directory: "rank0-of-4-….pt".
  FileDigest digest;
};

struct ManifestTensor {
  std::string name;      ///< Where it is in the snapshot: "model.first.weight".
  std::size_t file = 0;  ///< Its place among the files.
  std::string dtype;     ///< By Python's name: "float32".
  std::vector<std::int64_t> shape;

  bool operator==(const ManifestTensor&) const = default;
};

/// What belongs to a sharded snapshot; written last, so that without one there is no snapshot. Each
/// rank leaves one of its own file for rank 0, which puts them together.
struct SnapshotManifest {
  std::string save_id;  ///< Of rank 0, another for each save: no file of another is taken for one.
  std::int64_t epoch = 0;
  std::int64_t step = 0;
  std::int64_t world_size = 1;
  std::vector<ManifestFile> files = {};  ///< By rank.
  /// The model's in its order, then the others; those of a file in the file's order.
  std::vector<ManifestTensor> tensors = {};
};

/// As JSON, whose last entry is the XXH3-128 of the text before it.
std::string manifest_text(const SnapshotManifest& manifest);

/// What n bytes of a manifest are read into takes at most kAnyManifestBytes + n *
/// kManifestBytesAByte: a '[' in another has the fewest for what it takes.
inline constexpr std::uint64_t kManifestBytesAByte = 128;
inline constexpr std::uint64_t kAnyManifestBytes = std::uint64_t{1} << 20;

/// `source`: for errors. Errors: CorruptFile when any bit of the text has changed; UsageError for a
/// newer format.
SnapshotManifest parse_manifest(std::string_view text, const std::string& source);

/// Errors: those, and SystemError.
SnapshotManifest read_manifest(const std::filesystem::path& path);

}  // namespace lockstep::inline internal
