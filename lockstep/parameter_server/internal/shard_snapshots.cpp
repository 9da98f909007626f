#include "lockstep/parameter_server/internal/shard_snapshots.h"

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/snapshot/internal/snapshot_list.h"
#include "lockstep/snapshot/snapshot.h"

namespace lockstep::parameter_server::inline internal {
namespace {

// Servers make their updates together, or almost: what one of them has just written, another one's
// last but one answers.
constexpr int kKept = 2;

void check_folder(const std::filesystem::path& folder, int servers) {
  const std::string ending = concat("-of-", servers);
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("server-") && !name.ends_with(ending)) {
      throw UsageError(concat("parameter servers: ", entry.path().string(), " was not saved by ",
                              servers,
                              " servers; start as many as saved it, or choose another folder"));
    }
  }
}

}  // namespace

ShardSnapshots::ShardSnapshots(const std::filesystem::path& folder, int server, int servers)
    : directory_(folder / concat("server-", server, "-of-", servers)) {
  check_folder(folder, servers);
}

std::filesystem::path ShardSnapshots::path_of(std::int64_t updates) const {
  return directory_ / SnapshotName{.step = updates}.file_name();
}

void ShardSnapshots::save(const Shard& shard, std::int64_t clock) const {
  make_snapshot_directory(directory_);
  const SnapshotName name{.step = shard.updates()};
  shard.save(directory_ / name.file_name(), clock);
  delete_surplus(
      directory_, name, kKept, [](const SnapshotName&) { return true; },
      [](const SnapshotName&) {});
}

std::vector<std::int64_t> ShardSnapshots::whole() const {
  std::vector<std::int64_t> whole;
  for (const SnapshotName& name : list_snapshots(directory_).present) {
    try {
      load_snapshot(directory_ / name.file_name());
      whole.push_back(name.step);
    } catch (const Error& error) {  // Damaged, of another program, or not to be read.
      log(LogLevel::kWarning, concat("skipped a snapshot: ", error.what()));
    }
  }
  return whole;
}

std::int64_t ShardSnapshots::load(Shard& shard, std::int64_t updates) const {
  const std::int64_t clock = shard.load(path_of(updates));
  for (const SnapshotName& name : list_snapshots(directory_).present) {
    if (name.step > updates) delete_snapshot(directory_, name);
  }
  return clock;
}

}  // namespace lockstep::parameter_server::inline internal
