#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "lockstep/os/files/readable_file.h"
#include "lockstep/snapshot/checkpoint.h"
#include "lockstep/snapshot/checkpoint/tensor_box.h"

/// Where the numbers of a checkpoint's tensors lie on disk, whatever its format: what has to be
/// known to read a part of them. One function a format opens it.
namespace lockstep::inline internal {

/// A part of a tensor in a file.
struct StoredPiece {
  TensorBox box;
  std::size_t file = 0;
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
  /// In elements. Unset: the bytes are an archive of torch.save that holds this piece alone.
  std::optional<std::vector<std::int64_t>> strides = std::nullopt;
  /// Of all its bytes, where they are its alone and the format has it.
  std::optional<std::uint32_t> crc32 = std::nullopt;
};

struct StoredTensor {
  std::string name;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<std::int64_t> shape = {};
  /// They tile the shape.
  std::vector<StoredPiece> pieces = {};
};

struct StoredTensors {
  CheckpointFormat format = CheckpointFormat::kSafetensors;
  std::vector<ReadableFile> files = {};
  std::vector<StoredTensor> tensors = {};
  std::map<std::string, std::string> metadata = {};  ///< Only of safetensors.
};

// Each reads what describes the tensors, and none of their numbers. Trusts nothing: every piece
// lies within its file, shares no bytes with another tensor's that would let a small file fill the
// memory, and files are those of the folder.
// Errors: CorruptFile; UsageError for what is not supported; SystemError.

StoredTensors open_safetensors(const std::filesystem::path& file);
/// A folder with model.safetensors.index.json, or another *.safetensors.index.json; `index`: it.
StoredTensors open_sharded_safetensors(const std::filesystem::path& index);
/// A folder of torch.distributed.checkpoint.
StoredTensors open_distributed(const std::filesystem::path& folder, CheckpointPart part);
/// A file of torch.save, or a snapshot that is one file.
StoredTensors open_torch_save(const std::filesystem::path& file, CheckpointPart part);
/// A sharded snapshot.
StoredTensors open_sharded_snapshot(const std::filesystem::path& folder, CheckpointPart part);

/// The index of a folder of sharded safetensors. Nothing: it has none. Errors: UsageError when it
/// has several, none of which is the usual one.
std::optional<std::filesystem::path> find_safetensors_index(const std::filesystem::path& folder);

inline constexpr const char* kDistributedMetadataName = ".metadata";

}  // namespace lockstep::inline internal
