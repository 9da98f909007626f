#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include "lockstep/base/internal/deadline.h"
#include "lockstep/os/files/readable_file.h"
#include "lockstep/snapshot/internal/gathered_state.h"
#include "lockstep/snapshot/sharded/snapshot_manifest.h"
#include "lockstep/snapshot/snapshot.h"

/// Snapshots of which each rank writes a shard: a directory with one file per rank,
/// "rank0-of-4-<save id>.pt", and manifest.json, which rank 0 writes last. File names contain the
/// identifier of the save. So a second save of the same step replaces only the manifest,
/// atomically, and files of an abandoned save are never taken for those of another.
namespace lockstep::inline internal {

/// Identifies a save; equal on all ranks.
struct ShardedSave {
  std::filesystem::path directory;
  std::string save_id;
  std::int64_t epoch = 0;
  std::int64_t step = 0;
  int world_size = 1;
};

/// The dict in one rank's file, from its share_of().
c10::IValue share_value(const Snapshot& share, const std::string& save_id);

/// Writes a rank's file, and beside it a report for rank 0. `gather`: as save_file().
/// Errors: as save().
void write_share(const ShardedSave& save, int rank, const c10::IValue& value,
                 const GatherWhole& gather = {});

/// On rank 0: waits until the files of all ranks exist, writes the manifest, and deletes files of
/// earlier saves.
/// `model_names`: in their order.
/// `stop`: check once more, then give up.
/// Errors: TimeoutError that names the ranks without a file; UsageError if models differ between
/// ranks; else as AtomicFile.
void complete_sharded(const ShardedSave& save, const std::vector<std::string>& model_names,
                      const Deadline& deadline, const std::stop_token& stop);

/// Reads a complete snapshot. Verifies the manifest and every file first.
/// Errors: CorruptFile if any bit of a file differs, a file belongs to another save, or is
/// truncated; SystemError, also if the manifest or a file is missing; UsageError.
Snapshot load_sharded(const std::filesystem::path& directory);

/// The same with each file's values as `load` reads them, which gets files that are verified.
Snapshot load_sharded(const std::filesystem::path& directory,
                      const std::function<c10::IValue(const ReadableFile& file)>& load);

/// Throws what load_sharded() would throw for damage; reads each file once.
void verify_sharded(const std::filesystem::path& directory);

/// Key in the dict "lockstep" of a rank's file: the identifier of the save.
inline constexpr const char* kShareMark = "share_of";

/// The snapshot of a dict of snapshot_value().
/// `source`: for error messages.
/// Errors: UsageError for another dict, or a newer format.
Snapshot snapshot_from(const c10::IValue& dict, const std::string& source);
/// The same of a file that is a snapshot by itself, and not a share.
Snapshot snapshot_from_file(const c10::IValue& dict, const std::string& source);

}  // namespace lockstep::inline internal
