#include "lockstep/snapshot/internal/snapshot_list.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <string>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/failpoint.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/os/files/remove_tree.h"
#include "lockstep/snapshot/sharded/snapshot_manifest.h"

namespace lockstep {
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

inline namespace internal {

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

SnapshotList list_snapshots(const std::filesystem::path& directory) {
  SnapshotList list;
  std::error_code error;
  std::filesystem::directory_iterator item(directory, error);
  if (error == std::errc::no_such_file_or_directory) return list;
  for (; !error && item != std::filesystem::directory_iterator(); item.increment(error)) {
    const auto name = SnapshotName::parse(item->path().filename().native());
    if (!name) continue;
    std::error_code unknown;
    // Where it cannot be looked at, reading it will say why.
    const bool is_complete =
        !name->sharded || std::filesystem::exists(item->path() / kManifestName, unknown) || unknown;
    if (is_complete) {
      list.present.push_back(*name);
    } else if (std::filesystem::is_directory(item->path(), unknown)) {
      list.unfinished.push_back(*name);
    }
  }
  if (error) {
    throw SystemError(concat("list the snapshot directory ", directory), error.value(),
                      "name a directory that this process may read");
  }
  std::sort(list.present.rbegin(), list.present.rend());
  std::sort(list.unfinished.rbegin(), list.unfinished.rend());
  return list;
}

void make_snapshot_directory(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) {
    throw SystemError(concat("make the snapshot directory ", path), error.value(),
                      "choose a directory that this process may write");
  }
}

void delete_snapshot(const std::filesystem::path& directory, const SnapshotName& name) {
  const std::filesystem::path path = directory / name.file_name();
  std::error_code error;
  if (failpoint_fails("save.delete")) {
    error = std::error_code(errno, std::generic_category());
  } else {
    if (name.sharded) std::filesystem::remove(path / kManifestName, error);
    if (!error) remove_tree(path, error);
  }
  if (error) {
    log(LogLevel::kWarning, concat("cannot delete the old snapshot ", path, ": ", error.message()));
  }
  failpoint("save.deleted");
}

void delete_surplus(const std::filesystem::path& directory, const SnapshotName& written,
                    int keep_last, const std::function<bool(const SnapshotName&)>& is_whole,
                    const std::function<void(const SnapshotName&)>& deleted) {
  const SnapshotList list = list_snapshots(directory);
  for (const SnapshotName& name : snapshots_to_delete(list.present, written, keep_last, is_whole)) {
    delete_snapshot(directory, name);
    deleted(name);
  }
  for (const SnapshotName& name : list.unfinished) {
    if (name < written) delete_snapshot(directory, name);
  }
}

}  // namespace internal
}  // namespace lockstep
