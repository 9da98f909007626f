#include "lockstep/snapshot/snapshot.h"

#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/snapshot/save.h"
#include "lockstep/snapshot/sharded/sharded_snapshot.h"

namespace lockstep {
namespace {

/// To be raised when older readers would misread a newer file.
constexpr std::int64_t kFormat = 1;

}  // namespace

c10::IValue snapshot_value(const Snapshot& snapshot) {
  c10::impl::GenericDict about = make_dict();
  about.insert_or_assign("format", kFormat);
  about.insert_or_assign("version", LOCKSTEP_VERSION);
  c10::impl::GenericDict dict = make_dict();
  dict.insert_or_assign("lockstep", about);
  dict.insert_or_assign("epoch", snapshot.epoch);
  dict.insert_or_assign("step", snapshot.step);
  dict.insert_or_assign("world_size", snapshot.world_size);
  dict.insert_or_assign("model", tensor_dict_value(snapshot.model));
  dict.insert_or_assign("optimizer", snapshot.optimizer);
  dict.insert_or_assign("random_state", tensor_list_value(snapshot.random_state));
  dict.insert_or_assign("cuda_random_state", tensor_list_value(snapshot.cuda_random_state));
  dict.insert_or_assign("extra", tensor_dict_value(snapshot.extra));
  if (!snapshot.values.isNone()) dict.insert_or_assign("values", snapshot.values);
  return dict;
}

void save_snapshot(const std::filesystem::path& path, const Snapshot& snapshot) {
  save(path, snapshot_value(snapshot));
}

inline namespace internal {

Snapshot snapshot_from(const c10::IValue& dict, const std::string& source) {
  const std::int64_t format = integer_entry(entry(dict, "lockstep", source), "format", source);
  if (format != kFormat) {
    throw UsageError(concat(source, ": it has format ", format, ", this Lockstep (",
                            LOCKSTEP_VERSION, ") reads format ", kFormat,
                            "; use the Lockstep that wrote it"));
  }
  return {
      .model = tensor_dict(entry(dict, "model", source), source),
      .optimizer = entry(dict, "optimizer", source),
      .epoch = integer_entry(dict, "epoch", source),
      .step = integer_entry(dict, "step", source),
      .world_size = integer_entry(dict, "world_size", source),
      .random_state = tensor_list(entry(dict, "random_state", source), source),
      .cuda_random_state = tensor_list(entry(dict, "cuda_random_state", source), source),
      .extra = tensor_dict(entry(dict, "extra", source), source),
      .values = find_value(dict, "values"),
  };
}

Snapshot snapshot_from_file(const c10::IValue& dict, const std::string& source) {
  const c10::IValue about = entry(dict, "lockstep", source);
  if (about.isGenericDict() && !find_value(about, kShareMark).isNone()) {
    throw UsageError(concat(source, ": it is one rank's shard of a snapshot; name its directory"));
  }
  return snapshot_from(dict, source);
}

}  // namespace internal

Snapshot load_snapshot(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return load_sharded(path);
  return snapshot_from_file(load(path, {.checksum_required = true}),
                            concat("load ", path.string()));
}

}  // namespace lockstep
