#include "lockstep/snapshot/internal/snapshot_name.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

namespace lockstep::inline internal {
namespace {

constexpr std::string_view kNamePrefix = "snapshot-e";
constexpr std::string_view kStepMarker = "-s";
constexpr const char* kNameSuffix = ".pt";

bool take_text(std::string_view& rest, std::string_view text) {
  if (!rest.starts_with(text)) return false;
  rest.remove_prefix(text.size());
  return true;
}

bool take_number(std::string_view& rest, std::int64_t& number) {
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
  return error == std::errc() && number >= 0;
}

}  // namespace

}  // namespace lockstep::inline internal

namespace lockstep {

std::string SnapshotName::file_name() const {
  char name[80];
  std::snprintf(name, sizeof(name), "snapshot-e%04lld-s%08lld%s", static_cast<long long>(epoch),
                static_cast<long long>(step), sharded ? "" : kNameSuffix);
  return name;
}

std::optional<SnapshotName> SnapshotName::parse(std::string_view file_name) {
  SnapshotName name;
  std::string_view rest = file_name;
  if (!take_text(rest, kNamePrefix) || !take_number(rest, name.epoch) ||
      !take_text(rest, kStepMarker) || !take_number(rest, name.step)) {
    return std::nullopt;
  }
  name.sharded = rest.empty();
  // One name a snapshot: "snapshot-e3-s420.pt" would be a second for the same.
  if (name.file_name() != file_name) return std::nullopt;
  return name;
}

}  // namespace lockstep

namespace lockstep::inline internal {

std::vector<SnapshotName> snapshots_to_delete(
    std::vector<SnapshotName> present, const SnapshotName& written, int keep_last,
    const std::function<bool(const SnapshotName&)>& is_whole) {
  std::sort(present.rbegin(), present.rend());
  std::vector<SnapshotName> surplus;
  int whole = 1;
  for (const SnapshotName& name : present) {
    if (name >= written) continue;
    if (whole >= keep_last) {
      surplus.push_back(name);
    } else if (is_whole(name)) {
      ++whole;
    }
  }
  return surplus;
}

}  // namespace lockstep::inline internal
