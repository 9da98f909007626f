#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/parameter_server/internal/shard.h"

namespace lockstep::parameter_server::inline internal {

/// The snapshots of one server's shard, in a directory of its own: FOLDER/server-0-of-2, named by
/// the number of updates. `lockstep snapshot` reads them. Threads: one at a time.
class ShardSnapshots {
 public:
  /// Errors: UsageError where the folder has those of another number of servers.
  ShardSnapshots(const std::filesystem::path& folder, int server, int servers);

  /// The newest two stay. Errors: SystemError, with those before as they were.
  void save(const Shard& shard, std::int64_t clock) const;
  /// The updates in each that is whole; warns of damaged ones.
  std::vector<std::int64_t> whole() const;
  /// Returns the clock. Later ones go: what comes now may differ. Errors: as Shard::load.
  std::int64_t load(Shard& shard, std::int64_t updates) const;

 private:
  std::filesystem::path path_of(std::int64_t updates) const;

  const std::filesystem::path directory_;
};

}  // namespace lockstep::parameter_server::inline internal
