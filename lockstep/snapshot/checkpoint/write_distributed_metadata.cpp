#include <string>
#include <string_view>

#include "lockstep/snapshot/checkpoint/distributed_metadata.h"
#include "lockstep/snapshot/pickle/pickle_writer.h"
#include "lockstep/snapshot/pickle/storage_types.h"

namespace lockstep::inline internal {
namespace {

constexpr std::string_view kMetadataModule = "torch.distributed.checkpoint.metadata";
constexpr std::string_view kFilesModule = "torch.distributed.checkpoint.filesystem";
constexpr std::string_view kVersion = "1.0.0";

/// The tuple of TensorProperties.__getstate__.
void write_properties(PickleWriter& text, c10::ScalarType dtype) {
  text.object(kMetadataModule, "TensorProperties").op(PickleOpcode::kMark);
  text.global("torch", dtype_name(dtype));
  text.global("torch.serialization", "_get_layout").string("torch.strided");
  text.op(PickleOpcode::kTuple1).op(PickleOpcode::kReduce);
  text.op(PickleOpcode::kNewFalse);  // requires_grad
  text.global(kMetadataModule, "_MEM_FORMAT_ENCODING").number(0);
  text.op(PickleOpcode::kTuple1).op(PickleOpcode::kReduce);
  text.op(PickleOpcode::kNewFalse);  // pin_memory
  text.op(PickleOpcode::kTuple).set_state();
}

void write_tensor(PickleWriter& text, const DistributedTensor& tensor) {
  text.object(kMetadataModule, "TensorStorageMetadata").dict();
  text.string("properties");
  write_properties(text, tensor.dtype);
  text.string("size").size(tensor.shape);
  text.string("chunks").op(PickleOpcode::kEmptyList).op(PickleOpcode::kMark);
  for (const DistributedPiece& piece : tensor.pieces) {
    text.object(kMetadataModule, "ChunkStorageMetadata").dict();
    text.string("offsets").size(piece.box.begin);
    text.string("sizes").size(piece.box.sizes).end_dict().set_state();
  }
  text.op(PickleOpcode::kAppends).end_dict().set_state();
}

void write_places(PickleWriter& text, const DistributedMetadata& metadata) {
  for (const DistributedTensor& tensor : metadata.tensors) {
    for (std::size_t i = 0; i < tensor.pieces.size(); ++i) {
      const DistributedPiece& piece = tensor.pieces[i];
      text.object(kMetadataModule, "MetadataIndex").dict();
      text.string("fqn").string(tensor.name).string("index").number(i);
      text.string("offset").size(piece.box.begin).end_dict().set_state();
      text.object(kFilesModule, "_StorageInfo").dict();
      text.string("relative_path").string(metadata.files.at(piece.file));
      text.string("offset").number(piece.offset_bytes);
      text.string("length").number(piece.size_bytes).end_dict().set_state();
    }
  }
}

}  // namespace

std::string distributed_metadata_text(const DistributedMetadata& metadata) {
  PickleWriter text;
  text.object(kMetadataModule, "Metadata").dict();
  text.string("state_dict_metadata").dict();
  for (const DistributedTensor& tensor : metadata.tensors) {
    text.string(tensor.name);
    write_tensor(text, tensor);
  }
  text.end_dict().string("planner_data").dict();
  for (const DistributedTensor& tensor : metadata.tensors) {
    text.string(tensor.name).op(PickleOpcode::kMark);
    for (const std::string& key : tensor.path) text.string(key);
    text.op(PickleOpcode::kTuple);
  }
  text.end_dict().string("storage_data").dict();
  write_places(text, metadata);
  text.end_dict().string("storage_meta").none();
  text.string("version").string(kVersion).end_dict().set_state();
  return text.finish();
}

}  // namespace lockstep::inline internal
