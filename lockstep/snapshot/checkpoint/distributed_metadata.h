#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/ScalarType.h>

#include "lockstep/snapshot/checkpoint/tensor_box.h"

namespace lockstep::inline internal {

/// Where a piece of a tensor is: an archive of torch.save, which holds it alone, in a file.
struct DistributedPiece {
  TensorBox box;
  std::size_t file = 0;
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;

  bool operator==(const DistributedPiece&) const = default;
};

struct DistributedTensor {
  std::string name;
  /// The keys of the dicts that it was in, one in the other; numbers as text.
  std::vector<std::string> path;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<std::int64_t> shape = {};
  std::vector<DistributedPiece> pieces = {};

  bool operator==(const DistributedTensor&) const = default;
};

/// The file .metadata of torch.distributed.checkpoint (its version 1.0.0), without what is no
/// tensor.
struct DistributedMetadata {
  std::vector<std::string> files;  ///< names in the folder
  std::vector<DistributedTensor> tensors;

  bool operator==(const DistributedMetadata&) const = default;
};

/// What n bytes of it are read into takes at most kAnyDistributedBytes + n *
/// kDistributedBytesAByte.
inline constexpr std::uint64_t kDistributedBytesAByte = 384;
inline constexpr std::uint64_t kAnyDistributedBytes = std::uint64_t{32} << 20;

/// Executes nothing, and trusts nothing: files are of the folder, pieces tile their tensor, hold no
/// more bytes than their place in the file, and share none with another.
/// Errors: CorruptFile; UsageError naming what is refused: another class, a dtype, compressed data.
DistributedMetadata parse_distributed_metadata(std::string_view text, const std::string& source);

/// The text that Python's torch.distributed.checkpoint reads.
std::string distributed_metadata_text(const DistributedMetadata& metadata);

}  // namespace lockstep::inline internal
