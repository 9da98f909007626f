#pragma once

#include <filesystem>
#include <functional>
#include <vector>

#include "lockstep/snapshot/snapshot.h"

/// The snapshots of a run in its directory.
namespace lockstep::inline internal {

/// The snapshots in a directory.
struct SnapshotList {
  std::vector<SnapshotName> present;  ///< by name, newest first; any may be damaged
  /// Directories without a manifest, of saves that failed or are in progress.
  std::vector<SnapshotName> unfinished;
};

/// Lists the snapshots; empty without the directory.
/// Errors: SystemError.
SnapshotList list_snapshots(const std::filesystem::path& directory);

/// Creates the directory if needed.
/// Errors: SystemError.
void make_snapshot_directory(const std::filesystem::path& path);

/// Deletes a snapshot; a sharded one stops being a snapshot at once. Logs a warning for what it
/// cannot delete.
void delete_snapshot(const std::filesystem::path& directory, const SnapshotName& name);

/// Deletes the snapshots of snapshots_to_delete(), and files of unfinished saves before `written`.
/// Calls `deleted` for each.
void delete_surplus(const std::filesystem::path& directory, const SnapshotName& written,
                    int keep_last, const std::function<bool(const SnapshotName&)>& is_whole,
                    const std::function<void(const SnapshotName&)>& deleted);

/// The snapshots to delete after `written` is on disk, so that the newest `keep_last` complete ones
/// up to it remain. Later ones stay: they are damaged and about to be replaced. Calls `is_whole`
/// only as often as needed.
std::vector<SnapshotName> snapshots_to_delete(
    std::vector<SnapshotName> present, const SnapshotName& written, int keep_last,
    const std::function<bool(const SnapshotName&)>& is_whole);

}  // namespace lockstep::inline internal
