#include "tools/snapshot/inspected_snapshot.h"

#include <array>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/files/readable_file.h"
#include "lockstep/snapshot/checkpoint.h"
#include "lockstep/snapshot/checkpoint/tensor_limits.h"
#include "lockstep/snapshot/checkpoint/weights_path.h"
#include "lockstep/snapshot/internal/archive_writer.h"
#include "lockstep/snapshot/internal/snapshot_list.h"
#include "lockstep/snapshot/internal/value_tree.h"
#include "lockstep/snapshot/pickle/zip_reader.h"
#include "lockstep/snapshot/safetensors.h"
#include "lockstep/snapshot/save.h"
#include "lockstep/snapshot/sharded/snapshot_manifest.h"
#include "lockstep/snapshot/snapshot.h"
#include "lockstep/snapshot/state_dict.h"

namespace lockstep::inline internal {
namespace {

/// As save_snapshot() writes it.
bool is_snapshot_dict(const c10::IValue& tree) {
  return tree.isGenericDict() && find_value(tree, "lockstep").isGenericDict();
}

/// Errors: as TensorLimits.
void check_limits(const c10::IValue& tree, const std::filesystem::path& path) {
  const ReadableFile file(path);
  TensorLimits limits({.source = path,
                       .bytes = file.size_bytes(),
                       .pickle_bytes = ZipReader(file).record(kPickleRecord).size_bytes});
  visit_tensors(
      tree, [&](const std::string& name, const at::Tensor& tensor) { limits.check(name, tensor); });
}

void refuse_other_directory(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::exists(path / kManifestName, error)) return;
  const SnapshotList list = list_snapshots(path);
  if (list.present.empty()) {
    throw UsageError(concat("read ", path,
                            ": it has neither a snapshot nor a manifest; name a "
                            "snapshot"));
  }
  throw UsageError(concat("read ", path, ": it is a directory of ", list.present.size(),
                          " snapshots; name one, as in ",
                          (path / list.present.front().file_name()).string()));
}

}  // namespace

const char* kind_name(SnapshotKind kind) {
  constexpr std::array kNames = {
      "file", "sharded", "state dict", "safetensors", "sharded safetensors", "distributed"};
  return kNames.at(static_cast<std::size_t>(kind));
}

TensorDict InspectedSnapshot::tensors() const {
  TensorDict all;
  visit_tensors(tree, [&](const std::string& name, const at::Tensor& tensor) {
    all.emplace_back(name, tensor);
  });
  return all;
}

TensorDict InspectedSnapshot::weights() const {
  return without_prefix(tensor_dict(weights_value(tree), concat("read ", path.string())));
}

InspectedSnapshot read_inspected(const std::filesystem::path& path) {
  InspectedSnapshot found{.kind = SnapshotKind::kWhole, .path = path, .size_bytes = 0, .tree = {}};
  std::error_code error;
  if (is_checkpoint_folder(path)) {
    const CheckpointReader reader(path);
    found.kind = reader.format() == CheckpointFormat::kDistributed
                     ? SnapshotKind::kDistributed
                     : SnapshotKind::kShardedSafetensors;
    found.tree = tensor_dict_value(read_state_dict(path));
    found.metadata = reader.metadata();
  } else if (std::filesystem::is_directory(path, error)) {
    refuse_other_directory(path);
    found.kind = SnapshotKind::kSharded;
    found.tree = snapshot_value(load_snapshot(path));
  } else if (is_safetensors(path)) {
    Safetensors file = read_safetensors(path);
    found.kind = SnapshotKind::kSafetensors;
    found.tree = tensor_dict_value(file.tensors);
    found.metadata = std::move(file.metadata);
  } else {
    found.tree = load(path);
    check_limits(found.tree, path);
    if (!is_snapshot_dict(found.tree)) found.kind = SnapshotKind::kStateDict;
  }
  found.size_bytes = size_on_disk(path);
  return found;
}

std::uint64_t size_on_disk(const std::filesystem::path& path) {
  std::error_code error;
  std::uint64_t bytes = 0;
  if (!std::filesystem::is_directory(path, error)) {
    bytes = std::filesystem::file_size(path, error);
  } else {
    for (std::filesystem::directory_iterator item(path, error), end; !error && item != end;
         item.increment(error)) {
      std::error_code unknown;  // The file may have been deleted meanwhile.
      const std::uint64_t size = std::filesystem::file_size(item->path(), unknown);
      if (!unknown) bytes += size;
    }
  }
  if (error) {
    throw SystemError(concat("look at ", path), error.value(), "check that it can be read");
  }
  return bytes;
}

}  // namespace lockstep::inline internal
