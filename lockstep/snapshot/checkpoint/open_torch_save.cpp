#include <algorithm>
#include <set>
#include <utility>

#include <ATen/core/Tensor.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/snapshot/checkpoint/stored_tensors.h"
#include "lockstep/snapshot/checkpoint/strided_reader.h"
#include "lockstep/snapshot/internal/saved_file.h"
#include "lockstep/snapshot/internal/value_tree.h"
#include "lockstep/snapshot/pickle/pickle_nodes.h"
#include "lockstep/snapshot/save.h"
#include "lockstep/snapshot/sharded/snapshot_manifest.h"

namespace lockstep::inline internal {
namespace {

/// The dict of the weights, or the whole tree.
c10::IValue weights_in(c10::IValue tree) {
  for (const char* key : {"model", "state_dict"}) {
    if (!tree.isGenericDict()) break;
    if (const c10::IValue nested = find_value(tree, key); nested.isGenericDict()) tree = nested;
  }
  return tree;
}

/// What a tensor takes in StoredTensors and CheckpointReader beside its name, which is there three
/// times, and its dimensions, which are there five times.
constexpr std::uint64_t kStoredTensorBytes = 512;
constexpr std::uint64_t kNameBeginBytes = 40;

/// A pickle refers to a long key, and to a tensor of many dimensions, as often as it likes.
void check_cost(const std::string& name, const at::Tensor& tensor, PickleBudget& budget,
                const ReadableFile& file) {
  if (name.size() > kMaxTensorNameBytes) {
    throw UsageError(concat("read ", file.path().string(), ": the name of tensor '",
                            name.substr(0, kNameBeginBytes), "…' has ", name.size(),
                            " bytes, and at most ", kMaxTensorNameBytes,
                            " are supported; save it by a shorter one"));
  }
  const auto dimensions = static_cast<std::uint64_t>(tensor.dim());
  if (!budget.spend(kStoredTensorBytes + 3 * name.size() + 5 * dimensions * sizeof(std::int64_t))) {
    throw CorruptFile(concat("read ", file.path().string(), ": at tensor '", name,
                             "' its names and shapes take too much memory for its size; it is "
                             "damaged: take another copy"));
  }
}

StoredTensor stored_tensor(const std::string& name, const at::Tensor& tensor,
                           const Outline& outline, std::size_t file, std::uint64_t file_bytes) {
  const ZipRecord& record = outline.records.at(tensor.storage().unsafeGetStorageImpl());
  // A tensor may show one number any number of times.
  if (tensor.nbytes() > file_bytes) {
    throw UsageError(concat("tensor '", name, "' has ", tensor.nbytes(),
                            " bytes, more than its file; save it as a contiguous one"));
  }
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
  PickleBudget budget(outline.pickle_bytes);
  visit_tensors(tree, [&](const std::string& name, const at::Tensor& tensor) {
    check_cost(name, tensor, budget, file);
    stored.tensors.push_back(
        stored_tensor(name, tensor, outline, stored.files.size() - 1, file.size_bytes()));
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
  add_tensors(part == CheckpointPart::kModel ? weights_in(outline.tree) : outline.tree, outline,
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
