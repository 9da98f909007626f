#include <chrono>
#include <optional>
#include <system_error>

#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/text.h"
#include "lockstep/os/files/readable_file.h"
#include "lockstep/snapshot/internal/saved_file.h"
#include "lockstep/snapshot/internal/snapshot_list.h"
#include "lockstep/snapshot/save.h"
#include "lockstep/snapshot/sharded/snapshot_manifest.h"
#include "tools/snapshot/inspected_snapshot.h"
#include "tools/snapshot/snapshot_answers.h"
#include "tools/snapshot/text_table.h"

namespace lockstep::inline internal {
namespace {

using Clock = std::filesystem::file_time_type::clock;
using Json = nlohmann::ordered_json;

/// The number of ranks that saved it; nothing where damage hides it.
std::optional<std::int64_t> ranks_of(const std::filesystem::path& path, bool sharded) {
  try {
    if (sharded) return read_manifest(path / kManifestName).world_size;
    const c10::IValue tree = load_outline(ReadableFile(path)).tree;
    return integer_entry(tree, "world_size", "");
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::optional<std::chrono::seconds> age_of(const std::filesystem::path& path) {
  std::error_code error;
  const auto time = std::filesystem::last_write_time(path, error);
  if (error) return std::nullopt;
  return std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - time);
}

std::string age_text(std::chrono::seconds age) {
  const std::int64_t seconds = age.count();
  if (seconds < 120) return concat(seconds, " s");
  if (seconds < 2 * 3600) return concat(seconds / 60, " min");
  if (seconds < 48 * 3600) return concat(seconds / 3600, " h");
  return concat(seconds / 86400, " d");
}

}  // namespace

SnapshotAnswer list_answer(const std::filesystem::path& directory, bool json) {
  std::error_code error;
  if (!std::filesystem::is_directory(directory, error)) {
    throw UsageError(
        concat("snapshot ls: ", directory, " is no directory; name that of the snapshots"));
  }
  const SnapshotList list = list_snapshots(directory);
  std::vector<std::vector<std::string>> rows = {
      {"SNAPSHOT", "KIND", "EPOCH", "STEP", "RANKS", "SIZE", "AGE"}};
  Json objects = Json::array();
  const auto add = [&](const SnapshotName& name, bool is_finished) {
    const std::filesystem::path path = directory / name.file_name();
    const std::uint64_t bytes = size_on_disk(path);
    const auto ranks = is_finished ? ranks_of(path, name.sharded) : std::nullopt;
    const auto age = age_of(path);
    const char* const kind =
        !is_finished ? "unfinished"
                     : kind_name(name.sharded ? SnapshotKind::kSharded : SnapshotKind::kWhole);
    rows.push_back({name.file_name(), kind, std::to_string(name.epoch), std::to_string(name.step),
                    ranks ? std::to_string(*ranks) : "?", size_text(bytes),
                    age ? age_text(*age) : "?"});
    objects.push_back({{"name", name.file_name()},
                       {"kind", kind},
                       {"epoch", name.epoch},
                       {"step", name.step},
                       {"bytes", bytes},
                       {"ranks", ranks ? Json(*ranks) : Json()},
                       {"age_s", age ? Json(age->count()) : Json()}});
  };
  for (const SnapshotName& name : list.present) add(name, true);
  for (const SnapshotName& name : list.unfinished) add(name, false);
  if (json) return {.text = json_text(objects)};
  if (rows.size() == 1) return {.text = concat("no snapshots in ", directory.string(), "\n")};
  return {.text = text_table(rows, 2)};
}

}  // namespace lockstep::inline internal
