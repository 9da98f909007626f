#pragma once

#include <functional>
#include <vector>

#include "lockstep/snapshot/snapshot.h"

namespace lockstep::inline internal {

/// Which snapshots to delete once `written` is on disk, so that the newest `keep_last` whole ones
/// up to it remain. Those after `written` stay: they are damaged and about to be replaced.
/// `is_whole` is called only for as many as it takes to count.
std::vector<SnapshotName> snapshots_to_delete(
    std::vector<SnapshotName> present, const SnapshotName& written, int keep_last,
    const std::function<bool(const SnapshotName&)>& is_whole);

}  // namespace lockstep::inline internal
