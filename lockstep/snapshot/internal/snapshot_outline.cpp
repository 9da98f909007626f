#include "lockstep/snapshot/internal/snapshot_outline.h"

#include <string>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/snapshot/internal/checksum.h"
#include "lockstep/snapshot/internal/gathered_state.h"
#include "lockstep/snapshot/internal/saved_file.h"
#include "lockstep/snapshot/internal/value_tree.h"
#include "lockstep/snapshot/save.h"
#include "lockstep/snapshot/sharded/sharded_snapshot.h"

namespace lockstep::inline internal {

SnapshotOutline::SnapshotOutline(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    snapshot_ = load_sharded(path, [&](const ReadableFile& file) { return open(file); });
  } else {
    const ReadableFile file(path);
    if (!verify_checksum(file)) {
      throw UsageError(concat("read ", path.string(), ": no snapshot of Lockstep"));
    }
    snapshot_ = snapshot_from_file(open(file), concat("load ", path.string()));
  }
  const auto read_it = [&](const std::string&, const at::Tensor& tensor) { return read(tensor); };
  for (auto* const states : {&snapshot_.random_state, &snapshot_.cuda_random_state}) {
    for (at::Tensor& state : *states) state = read(state);
  }
  for (auto& [name, tensor] : snapshot_.extra) tensor = read(tensor);
  snapshot_.values = map_tensors(snapshot_.values, read_it);
  snapshot_.optimizer =
      map_tensors(snapshot_.optimizer, [&](const std::string&, const at::Tensor& tensor) {
        return tensor.dim() == 0 ? read(tensor) : tensor;
      });
}

c10::IValue SnapshotOutline::open(const ReadableFile& file) {
  Outline outline = load_outline(file);
  for (auto& [storage, record] : outline.records) {
    records_[storage] = {files_.size(), std::move(record)};
  }
  files_.push_back(file);
  return outline.tree;
}

at::Tensor SnapshotOutline::read(const at::Tensor& absent) const {
  if (!is_absent(absent)) return absent;
  const auto& [file, record] = records_.at(absent.storage().unsafeGetStorageImpl());
  return read_absent(files_[file], record, absent);
}

}  // namespace lockstep::inline internal
