#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/ScalarType.h>

#include "lockstep/snapshot/checkpoint/tensor_box.h"

namespace lockstep::inline internal {

/// A piece of a tensor: an archive of torch.save in a file, which holds only this piece.
struct DistributedPiece {
  TensorBox box;
  std::size_t file = 0;
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;

  bool operator==(const DistributedPiece&) const = default;
};

/// A tensor of torch.distributed.checkpoint.
struct DistributedTensor {
  std::string name;
  /// Keys of the nested dicts that held it; numbers as text.
  std::vector<std::string> path;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<std::int64_t> shape = {};
  std::vector<DistributedPiece> pieces = {};

  bool operator==(const DistributedTensor&) const = default;
};

/// The file .metadata of torch.distributed.checkpoint (version 1.0.0), tensors only.
struct DistributedMetadata {
  std::vector<std::string> files;  ///< names in the directory
  std::vector<DistributedTensor> tensors;

  bool operator==(const DistributedMetadata&) const = default;
};

/// Parsing n bytes takes at most kAnyDistributedBytes + n * kDistributedBytesAByte bytes.
inline constexpr std::uint64_t kDistributedBytesAByte = 384;
inline constexpr std::uint64_t kAnyDistributedBytes = std::uint64_t{32} << 20;

/// Parses the file. Executes and trusts nothing: files are inside of the directory; pieces tile
/// their tensor, fit their range of the file, and share no bytes.
/// Errors: CorruptFile; UsageError that names what is refused: another class, a dtype, compressed
/// data.
DistributedMetadata parse_distributed_metadata(std::string_view text, const std::string& source);

/// The text of the file, for Python's torch.distributed.checkpoint.
std::string distributed_metadata_text(const DistributedMetadata& metadata);

}  // namespace lockstep::inline internal
