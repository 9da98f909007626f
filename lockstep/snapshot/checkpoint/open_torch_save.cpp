#include <algorithm>
#include <set>
#include <utility>

#include <ATen/core/Tensor.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/snapshot/checkpoint/stored_tensors.h"
#include "lockstep/snapshot/checkpoint/strided_reader.h"
#include "lockstep/snapshot/checkpoint/tensor_limits.h"
#include "lockstep/snapshot/checkpoint/weights_path.h"
#include "lockstep/snapshot/internal/saved_file.h"
#include "lockstep/snapshot/internal/value_tree.h"
#include "lockstep/snapshot/pickle/pickle_nodes.h"
#include "lockstep/snapshot/save.h"
#include "lockstep/snapshot/sharded/snapshot_manifest.h"

namespace lockstep::inline internal {
namespace {

StoredTensor stored_tensor(const std::string& name, const at::Tensor& tensor,
                           const Outline& outline, std::size_t file) {
  const ZipRecord& record = outline.records.at(tensor.storage().unsafeGetStorageImpl());
  const auto skipped = static_cast<std::uint64_t>(tensor.storage_offset()) * tensor.element_size();
  StoredPiece piece{.box = whole_box(tensor.sizes().vec()),
                    .file = file,
                    .offset_bytes = record.offset_bytes + skipped,
                    .size_bytes = record.size_bytes - skipped,
                    .strides = tensor.strides().vec()};
  if (tensor.nbytes() == record.size_bytes && skipped == 0 && record.crc32 != 0) {
    piece.crc32 = record.crc32;
  }
  return {.name = name,
          .dtype = tensor.scalar_type(),
          .shape = tensor.sizes().vec(),
          .pieces = {std::move(piece)}};
}

/// Of the last file.
void add_tensors(const c10::IValue& tree, const Outline& outline, const ReadableFile& file,
                 StoredTensors& stored) {
  TensorLimits limits(
      {.source = file.path(), .bytes = file.size_bytes(), .pickle_bytes = outline.pickle_bytes});
  visit_tensors(tree, [&](const std::string& name, const at::Tensor& tensor) {
    limits.check(name, tensor);
    stored.tensors.push_back(stored_tensor(name, tensor, outline, stored.files.size() - 1));
  });
}

}  // namespace

StoredTensors open_torch_save(const std::filesystem::path& path, CheckpointPart part) {
  StoredTensors stored{.format = CheckpointFormat::kTorchSave};
  const ReadableFile file = stored.files.add(path);
  const Outline outline = load_outline(file);
  if (outline.tree.isGenericDict() && find_value(outline.tree, "lockstep").isGenericDict()) {
    stored.format = CheckpointFormat::kSnapshot;
  }
  add_tensors(part == CheckpointPart::kModel ? weights_value(outline.tree) : outline.tree, outline,
              file, stored);
  return stored;
}

StoredTensors open_sharded_snapshot(const std::filesystem::path& folder, CheckpointPart part) {
  const SnapshotManifest manifest = read_manifest(folder / kManifestName);
  StoredTensors all{.format = CheckpointFormat::kShardedSnapshot};
  for (const ManifestFile& expected : manifest.files) {
    const ReadableFile file = all.files.add(folder / expected.name);
    if (file.size_bytes() != expected.digest.size_bytes) {
      throw CorruptFile(concat("read ", file.path().string(), ": it has ", file.size_bytes(),
                               " bytes, ", expected.digest.size_bytes,
                               " were written; it is truncated, or of another snapshot"));
    }
    const Outline outline = load_outline(file);
    add_tensors(outline.tree, outline, file, all);
  }
  const std::string prefix = part == CheckpointPart::kModel ? "model." : "";
  std::map<std::pair<std::size_t, std::string>, StoredTensor*> found;
  for (StoredTensor& tensor : all.tensors) {
    found.emplace(std::pair(tensor.pieces[0].file, tensor.name), &tensor);
  }
  StoredTensors stored{.format = all.format, .files = std::move(all.files)};
  std::set<std::string> names;
  for (const ManifestTensor& wanted : manifest.tensors) {
    if (!wanted.name.starts_with(prefix) || !names.insert(wanted.name).second) continue;
    const auto tensor = found.find(std::pair(wanted.file, wanted.name));
    if (tensor == found.end()) {
      throw CorruptFile(concat("read ", folder.string(), ": '", wanted.name,
                               "' is not where the manifest says; it is of another save"));
    }
    stored.tensors.push_back(std::move(*tensor->second));
    stored.tensors.back().name.erase(0, prefix.size());
  }
  return stored;
}

}  // namespace lockstep::inline internal
