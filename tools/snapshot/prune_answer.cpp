#include <map>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/text.h"
#include "lockstep/snapshot/internal/snapshot_list.h"
#include "lockstep/snapshot/internal/snapshot_outline.h"
#include "tools/snapshot/inspected_snapshot.h"
#include "tools/snapshot/snapshot_answers.h"
#include "tools/snapshot/text_table.h"

namespace lockstep::inline internal {

SnapshotAnswer prune_answer(const PruneRequest& request) {
  const std::filesystem::path& directory = request.directory;
  const SnapshotList list = list_snapshots(directory);
  std::map<SnapshotName, bool> known;
  const auto is_whole = [&](const SnapshotName& name) {
    const auto [found, is_new] = known.try_emplace(name, true);
    if (!is_new) return found->second;
    try {
      const SnapshotOutline outline(directory / name.file_name());
    } catch (const Error&) {
      found->second = false;
    }
    return found->second;
  };
  std::optional<SnapshotName> newest;
  SnapshotAnswer answer;
  for (const SnapshotName& name : list.present) {
    if (is_whole(name)) {
      newest = name;
      break;
    }
    answer.text += concat("kept ", name.file_name(), ": damaged, but the newest\n");
  }
  if (!newest) {
    throw UsageError(concat("snapshot prune: ", directory,
                            " has no complete snapshot, so nothing is deleted; lockstep "
                            "snapshot verify shows the damage"));
  }
  std::vector<SnapshotName> names =
      snapshots_to_delete(list.present, *newest, request.keep, is_whole);
  for (const SnapshotName& name : list.unfinished) {
    if (name < *newest) names.push_back(name);
  }
  std::uint64_t bytes = 0;
  for (const SnapshotName& name : names) {
    const std::uint64_t size = size_on_disk(directory / name.file_name());
    bytes += size;
    if (!request.dry_run) delete_snapshot(directory, name);
    answer.text += concat(request.dry_run ? "would delete " : "deleted ", name.file_name(), ", ",
                          size_text(size), "\n");
  }
  answer.text +=
      concat(names.size(), request.dry_run ? " to delete, " : " deleted, ", size_text(bytes), "\n");
  return answer;
}

}  // namespace lockstep::inline internal
