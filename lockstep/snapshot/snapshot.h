#pragma once

#include <compare>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "lockstep/snapshot/state_dict.h"

namespace lockstep {

/// The complete state of a training run at one step, from which it resumes.
///
/// In a file it is a dict of plain values and tensors with the same names, for Python's torch.load,
/// beside {"lockstep": {"format": 1, "version": …}}.
struct Snapshot {
  TensorDict model = {};       ///< state_dict(module)
  c10::IValue optimizer = {};  ///< optimizer_state_dict(optimizer)
  std::int64_t epoch = 0;
  std::int64_t step = 0;
  std::int64_t world_size = 1;
  std::vector<at::Tensor> random_state = {};       ///< of the CPU generator, by rank
  std::vector<at::Tensor> cuda_random_state = {};  ///< of the rank's CUDA device, by rank; or empty
  TensorDict extra = {};                           ///< the program's own tensors
  c10::IValue values = {};                         ///< the program's own plain values; or None
};

/// A snapshot's name in its directory, with its epoch and step. "snapshot-e0003-s00000420.pt" is a
/// file; "snapshot-e0003-s00000420" is the directory of a sharded snapshot.
struct SnapshotName {
  std::int64_t epoch = 0;
  std::int64_t step = 0;
  bool sharded = false;

  auto operator<=>(const SnapshotName&) const = default;
  /// The name in the directory.
  std::string file_name() const;
  /// Parses a name; nullopt for any other name.
  static std::optional<SnapshotName> parse(std::string_view file_name);
};

/// The content of a snapshot's file, for save(). Shares the snapshot's tensors.
c10::IValue snapshot_value(const Snapshot& snapshot);

/// Writes the snapshot to one file with a checksum; the file is complete or absent.
/// Errors: SystemError (disk full, no permission), with the path as it was before; UsageError for
/// tensors that files cannot hold.
void save_snapshot(const std::filesystem::path& path, const Snapshot& snapshot);

/// Reads a file of save_snapshot(), or the directory of a sharded snapshot; tensors are on the CPU.
/// Verifies all checksums first.
/// Errors: CorruptFile if a file is truncated or any bit has changed; UsageError for files of other
/// programs and of newer formats; SystemError.
Snapshot load_snapshot(const std::filesystem::path& path);

}  // namespace lockstep
