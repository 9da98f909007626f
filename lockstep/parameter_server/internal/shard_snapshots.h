#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/parameter_server/internal/shard.h"

namespace lockstep::parameter_server::inline internal {

/// Snapshots of one server's shard, in the directory FOLDER/server-0-of-2, named by the number of
/// updates. `lockstep snapshot` reads them.
/// Threads: one at a time.
class ShardSnapshots {
 public:
  /// Errors: UsageError if the folder holds snapshots of another number of servers.
  ShardSnapshots(const std::filesystem::path& folder, int server, int servers);

  /// Writes a snapshot; keeps the newest two.
  /// Errors: SystemError, with earlier snapshots unchanged.
  void save(const Shard& shard, std::int64_t clock) const;
  /// Update numbers of the complete snapshots; warns about damaged ones.
  std::vector<std::int64_t> whole() const;
  /// Loads a snapshot, and returns its clock. Deletes later ones, since the following updates may
  /// differ.
  /// Errors: as Shard::load.
  std::int64_t load(Shard& shard, std::int64_t updates) const;

 private:
  std::filesystem::path path_of(std::int64_t updates) const;

  const std::filesystem::path directory_;
};

}  // namespace lockstep::parameter_server::inline internal
