#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "lockstep/snapshot/checkpoint.h"
#include "lockstep/snapshot/checkpoint/checkpoint_files.h"
#include "lockstep/snapshot/checkpoint/tensor_box.h"

/// Where the values of a checkpoint's tensors are on disk, for any format: all that is needed to
/// read a part of them. One function per format opens it.
namespace lockstep::inline internal {

/// A part of a tensor in a file.
struct StoredPiece {
  TensorBox box;
  std::size_t file = 0;
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
  /// In elements. Unset: the bytes are an archive of torch.save that holds only this piece.
  std::optional<std::vector<std::int64_t>> strides = std::nullopt;
  /// CRC of all its bytes, if the format has one and no other piece shares the bytes.
  std::optional<std::uint32_t> crc32 = std::nullopt;
};

/// A tensor of a checkpoint.
struct StoredTensor {
  std::string name;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<std::int64_t> shape = {};
  /// Pieces that tile the shape.
  std::vector<StoredPiece> pieces = {};
};

/// All tensors of a checkpoint.
struct StoredTensors {
  CheckpointFormat format = CheckpointFormat::kSafetensors;
  CheckpointFiles files = {};
  std::vector<StoredTensor> tensors = {};
  std::map<std::string, std::string> metadata = {};  ///< of safetensors only
};

/// Reports what is wrong with a piece. Errors: CorruptFile.
[[noreturn]] void refuse_piece(const ReadableFile& file, const StoredTensor& tensor,
                               const StoredPiece& piece, const std::string& what);
/// The piece with strides, which needs a look into its archive. Errors: CorruptFile; SystemError.
StoredPiece locate_piece(const StoredTensor& tensor, const StoredPiece& piece,
                         const ReadableFile& file);

// These functions read the metadata of the tensors, not their values. They trust nothing: every
// piece is inside its file; no bytes are shared so that a small file could fill the memory; files
// are inside the directory. Errors: CorruptFile; UsageError for what is not supported; SystemError.

/// Opens one file of safetensors.
StoredTensors open_safetensors(const std::filesystem::path& file);
/// Opens a directory of safetensors. `index`: its model.safetensors.index.json, or another
/// *.safetensors.index.json.
StoredTensors open_sharded_safetensors(const std::filesystem::path& index);
/// Opens a directory of torch.distributed.checkpoint.
StoredTensors open_distributed(const std::filesystem::path& folder, CheckpointPart part);
/// Opens a file of torch.save, or a snapshot in one file.
StoredTensors open_torch_save(const std::filesystem::path& file, CheckpointPart part);
/// Opens a sharded snapshot.
StoredTensors open_sharded_snapshot(const std::filesystem::path& folder, CheckpointPart part);

/// The index of a directory of sharded safetensors; nullopt if it has none.
/// Errors: UsageError for several indexes without the usual one.
std::optional<std::filesystem::path> find_safetensors_index(const std::filesystem::path& folder);

inline constexpr const char* kDistributedMetadataName = ".metadata";

}  // namespace lockstep::inline internal
