#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/os/files/readable_file.h"
#include "lockstep/snapshot/pickle/zip_reader.h"
#include "lockstep/snapshot/snapshot.h"

namespace lockstep::inline internal {

/// A snapshot on disk whose tensors are read one by one.
/// Threads: one. Errors: as load_snapshot().
class SnapshotOutline {
 public:
  /// Verifies all checksums.
  explicit SnapshotOutline(const std::filesystem::path& path);

  /// Complete but for the model's tensors and those of the optimizer's state that have dimensions,
  /// which are absent.
  const Snapshot& snapshot() const { return snapshot_; }
  /// The tensor for which one of these stands.
  at::Tensor read(const at::Tensor& absent) const;

 private:
  c10::IValue open(const ReadableFile& file);

  std::vector<ReadableFile> files_;
  std::map<const c10::StorageImpl*, std::pair<std::size_t, ZipRecord>> records_;
  Snapshot snapshot_;
};

}  // namespace lockstep::inline internal
