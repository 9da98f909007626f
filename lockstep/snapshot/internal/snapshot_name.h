#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// A snapshot's name and its place in the run: that of a file, "snapshot-e0003-s00000420.pt", or of
/// a directory, "snapshot-e0003-s00000420", where each rank has written a part.
struct SnapshotName {
  std::int64_t epoch = 0;
  std::int64_t step = 0;
  bool sharded = false;

  auto operator<=>(const SnapshotName&) const = default;
  std::string file_name() const;
  /// Nothing for any other name.
  static std::optional<SnapshotName> parse(std::string_view file_name);
};

/// Which snapshots to delete once `written` is on disk, so that the newest `keep_last` whole ones
/// up to it remain. Those after `written` stay: they are damaged and about to be replaced.
/// `is_whole` is called only for as many as it takes to count.
std::vector<SnapshotName> snapshots_to_delete(
    std::vector<SnapshotName> present, const SnapshotName& written, int keep_last,
    const std::function<bool(const SnapshotName&)>& is_whole);

}  // namespace lockstep
