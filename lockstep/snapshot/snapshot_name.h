#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// A snapshot file's name, "snapshot-e0003-s00000420.pt", and its place in the run.
struct SnapshotName {
  std::int64_t epoch = 0;
  std::int64_t step = 0;

  auto operator<=>(const SnapshotName&) const = default;
  std::string file_name() const;
  /// Nothing for any other name.
  static std::optional<SnapshotName> parse(std::string_view file_name);
};

/// Which snapshots to delete once `written` is on disk, so that the newest `keep_last` whole ones
/// up to it remain. Those after `written` stay: they are of another run, or damaged and about to be
/// replaced. `is_whole` is asked only about those that are needed to count.
std::vector<SnapshotName> snapshots_to_delete(
    std::vector<SnapshotName> present, const SnapshotName& written, int keep_last,
    const std::function<bool(const SnapshotName&)>& is_whole);

}  // namespace lockstep
