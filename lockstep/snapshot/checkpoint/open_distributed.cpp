#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/snapshot/checkpoint/distributed_metadata.h"
#include "lockstep/snapshot/checkpoint/stored_tensors.h"
#include "lockstep/snapshot/checkpoint/weights_path.h"

namespace lockstep::inline internal {
namespace {

/// Some 500 bytes a piece: half a million pieces stay below it.
constexpr std::uint64_t kMaxMetadataBytes = std::uint64_t{256} << 20;

}  // namespace

StoredTensors open_distributed(const std::filesystem::path& folder, CheckpointPart part) {
  const ReadableFile metadata_file(folder / kDistributedMetadataName);
  const std::string source = metadata_file.path().string();
  if (metadata_file.size_bytes() > kMaxMetadataBytes) {
    throw CorruptFile(concat("read ", source, ": it has ", metadata_file.size_bytes(),
                             " bytes, more than any metadata; take another copy"));
  }
  DistributedMetadata metadata = parse_distributed_metadata(metadata_file.text(), source);
  StoredTensors stored{.format = CheckpointFormat::kDistributed};
  std::vector<std::uint64_t> file_bytes;
  for (const std::string& name : metadata.files) {
    file_bytes.push_back(stored.files.add(folder / name).size_bytes());
  }
  KeyPath weights;
  if (part == CheckpointPart::kModel) {
    std::vector<KeyPath> paths;
    for (const DistributedTensor& tensor : metadata.tensors) paths.push_back(tensor.path);
    weights = weights_path(paths);
  }
  for (DistributedTensor& tensor : metadata.tensors) {
    if (!weights.empty() && !is_below(tensor.path, weights)) continue;
    std::string name = weights.empty() ? std::move(tensor.name) : name_below(tensor.path, weights);
    StoredTensor entry{
        .name = std::move(name), .dtype = tensor.dtype, .shape = std::move(tensor.shape)};
    for (DistributedPiece& piece : tensor.pieces) {
      if (piece.offset_bytes + piece.size_bytes > file_bytes[piece.file]) {
        throw CorruptFile(concat("read ", (folder / metadata.files[piece.file]).string(),
                                 ": it has ", file_bytes[piece.file], " bytes, too few for ",
                                 entry.name, box_text(piece.box),
                                 "; it is truncated, or of another save"));
      }
      entry.pieces.push_back({.box = std::move(piece.box),
                              .file = piece.file,
                              .offset_bytes = piece.offset_bytes,
                              .size_bytes = piece.size_bytes});
    }
    stored.tensors.push_back(std::move(entry));
  }
  return stored;
}

}  // namespace lockstep::inline internal
