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

/// A training run at one instant: all that it takes to go on from there.
///
/// In a file it is what torch.load gives Python as a dict of the same names, made of plain values
/// and tensors, with {"lockstep": {"format": 1, "version": …}} beside them.
struct Snapshot {
  TensorDict model = {};       ///< state_dict(module)
  c10::IValue optimizer = {};  ///< optimizer_state_dict(optimizer)
  std::int64_t epoch = 0;
  std::int64_t step = 0;
  std::int64_t world_size = 1;
  std::vector<at::Tensor> random_state = {};       ///< Of the CPU, by rank.
  std::vector<at::Tensor> cuda_random_state = {};  ///< Of the rank's device, by rank; or empty.
  TensorDict extra = {};                           ///< The program's own.
  c10::IValue values = {};                         ///< Others of it, plain; or None.
};

/// A snapshot's name in its directory and its place in the run: that of a file,
/// "snapshot-e0003-s00000420.pt", or of a directory, "snapshot-e0003-s00000420", where each rank
/// has written a part.
struct SnapshotName {
  std::int64_t epoch = 0;
  std::int64_t step = 0;
  bool sharded = false;

  auto operator<=>(const SnapshotName&) const = default;
  std::string file_name() const;
  /// Nothing for any other name.
  static std::optional<SnapshotName> parse(std::string_view file_name);
};

/// What the file of a snapshot holds, for save(). Shares the snapshot's tensors.
c10::IValue snapshot_value(const Snapshot& snapshot);

/// Writes the file whole or not at all, with a checksum.
/// Errors: SystemError (disk full, no permission), with the path as it was before; UsageError for
/// tensors that files cannot hold.
void save_snapshot(const std::filesystem::path& path, const Snapshot& snapshot);

/// Reads a file of save_snapshot, or the directory of a sharded snapshot, tensors on the CPU.
/// Verifies the checksums before anything else.
/// Errors: CorruptFile when a file is truncated or any bit has changed; UsageError for files of
/// other programs and of newer formats; SystemError.
Snapshot load_snapshot(const std::filesystem::path& path);

}  // namespace lockstep
