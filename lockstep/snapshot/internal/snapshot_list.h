#pragma once

#include <filesystem>
#include <functional>
#include <vector>

#include "lockstep/snapshot/internal/snapshot_name.h"

/// The snapshots of a run as they lie in its directory.
namespace lockstep::inline internal {

struct SnapshotList {
  std::vector<SnapshotName> present;  ///< By their names, newest first; any may be damaged.
  /// Directories without a manifest: of saves that were not completed, or are under way.
  std::vector<SnapshotName> unfinished;
};

/// Empty where there is no directory. Errors: SystemError.
SnapshotList list_snapshots(const std::filesystem::path& directory);

/// Deletes a snapshot, a sharded one so that it is none from the first instant on. Best effort: a
/// warning in the log says what stays.
void delete_snapshot(const std::filesystem::path& directory, const SnapshotName& name);

/// Deletes what snapshots_to_delete() says, and what unfinished saves before `written` left.
/// `deleted` hears of each.
void delete_surplus(const std::filesystem::path& directory, const SnapshotName& written,
                    int keep_last, const std::function<bool(const SnapshotName&)>& is_whole,
                    const std::function<void(const SnapshotName&)>& deleted);

}  // namespace lockstep::inline internal
