#pragma once

#include <cstdint>
#include <filesystem>
#include <stop_token>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include "lockstep/base/internal/deadline.h"
#include "lockstep/snapshot/sharded/snapshot_manifest.h"
#include "lockstep/snapshot/snapshot.h"

/// Snapshots of which each rank writes a share: a directory with a file of each rank,
/// "rank0-of-4-<save id>.pt", and manifest.json, which rank 0 writes last. Names of files have the
/// save's own number, so that a save of the same step again replaces the manifest alone, in one
/// instant, and files of a save that was given up are never taken for those of another.
namespace lockstep::inline internal {

/// Which save of which run, the same on all ranks.
struct ShardedSave {
  std::filesystem::path directory;
  std::string save_id;
  std::int64_t epoch = 0;
  std::int64_t step = 0;
  int world_size = 1;
};

/// The dict of one rank's file, of its share_of().
c10::IValue share_value(const Snapshot& share, const std::string& save_id);

/// Writes a rank's file, and beside it what rank 0 has to know of it. Errors: as save().
void write_share(const ShardedSave& save, int rank, const c10::IValue& value);

/// On rank 0: waits until all ranks' files are there, writes the manifest and deletes what earlier
/// saves left beside it. `model_names`: in their order. `stop`: to look once more and give up.
/// Errors: TimeoutError naming the ranks of which there is none; UsageError when the ranks' models
/// differ; else as AtomicFile.
void complete_sharded(const ShardedSave& save, const std::vector<std::string>& model_names,
                      const Deadline& deadline, const std::stop_token& stop);

/// Reads it whole. Verifies the manifest and every file before it reads anything else.
/// Errors: CorruptFile when any bit of a file differs, one belongs to another save, or is cut
/// short; SystemError, also where there is no manifest or a file is missing; UsageError.
Snapshot load_sharded(const std::filesystem::path& directory);

/// Throws what load_sharded would for damage, reading each file once.
void verify_sharded(const std::filesystem::path& directory);

/// In the dict "lockstep" of a file that is one rank's share of a snapshot: the save's number.
inline constexpr const char* kShareMark = "share_of";

/// The snapshot of a dict that snapshot_value() made. `source`: for errors. Errors: UsageError when
/// it is another dict, or of a newer format.
Snapshot snapshot_from(const c10::IValue& dict, const std::string& source);

}  // namespace lockstep::inline internal
