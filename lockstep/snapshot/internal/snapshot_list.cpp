#include "lockstep/snapshot/internal/snapshot_list.h"

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/failpoint.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/snapshot/sharded/snapshot_manifest.h"

namespace lockstep::inline internal {

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

void delete_snapshot(const std::filesystem::path& directory, const SnapshotName& name) {
  const std::filesystem::path path = directory / name.file_name();
  std::error_code error;
  if (failpoint_fails("save.delete")) {
    error = std::error_code(errno, std::generic_category());
  } else {
    if (name.sharded) std::filesystem::remove(path / kManifestName, error);
    if (!error) std::filesystem::remove_all(path, error);
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

}  // namespace lockstep::inline internal
