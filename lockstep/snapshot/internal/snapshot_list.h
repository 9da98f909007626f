#pragma once

#include <filesystem>
#include <functional>
#include <vector>

#include "lockstep/snapshot/snapshot.h"

/// The snapshots of a run as they lie in its directory.
namespace lockstep::inline internal {

struct SnapshotList {
  std::vector<SnapshotName> present;  ///< By their names, newest first; any may be damaged.
  /// Directories without a manifest: of saves that were not completed, or are under way.
  std::vector<SnapshotName> unfinished;
};

/// Empty where there is no directory. Errors: SystemError.
SnapshotList list_snapshots(const std::filesystem::path& directory);

/// Errors: SystemError.
void make_snapshot_directory(const std::filesystem::path& path);

/// Deletes a snapshot, a sharded one so that it is none from the first instant on. Best effort: a
/// warning in the log says what stays.
void delete_snapshot(const std::filesystem::path& directory, const SnapshotName& name);

/// Deletes what snapshots_to_delete() says, and what unfinished saves before `written` left.
/// `deleted` hears of each.
void delete_surplus(const std::filesystem::path& directory, const SnapshotName& written,
                    int keep_last, const std::function<bool(const SnapshotName&)>& is_whole,
                    const std::function<void(const SnapshotName&)>& deleted);

/// Which snapshots to delete once `written` is on disk, so that the newest `keep_last` whole ones
/// up to it remain. Those after `written` stay: they are damaged and about to be replaced.
/// `is_whole` is called only for as many as it takes to count.
std::vector<SnapshotName> snapshots_to_delete(
    std::vector<SnapshotName> present, const SnapshotName& written, int keep_last,
    const std::function<bool(const SnapshotName&)>& is_whole);

}  // namespace lockstep::inline internal
