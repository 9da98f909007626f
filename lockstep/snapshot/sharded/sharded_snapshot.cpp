#include "lockstep/snapshot/sharded/sharded_snapshot.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/failpoint.h"
#include "lockstep/comm/internal/store_wait.h"
#include "lockstep/os/files/atomic_file.h"
#include "lockstep/os/files/readable_file.h"
#include "lockstep/snapshot/internal/saved_file.h"
#include "lockstep/snapshot/internal/snapshot_list.h"
#include "lockstep/snapshot/save.h"
#include "lockstep/snapshot/sharded/share_tree.h"

namespace lockstep::inline internal {
namespace {

/// How often rank 0 looks for files of other ranks: no file system of several machines tells.
constexpr std::chrono::milliseconds kShortestLook{1};
constexpr std::chrono::milliseconds kLongestLook{100};

std::string share_name(const ShardedSave& save, int rank) {
  return concat("rank", rank, "-of-", save.world_size, "-", save.save_id);
}

std::filesystem::path report_path(const ShardedSave& save, int rank) {
  return save.directory / (share_name(save, rank) + ".json");
}

void write_text(const std::filesystem::path& path, const std::string& text) {
  AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

std::vector<int> missing_ranks(const ShardedSave& save) {
  std::vector<int> missing;
  for (int rank = 0; rank < save.world_size; ++rank) {
    std::error_code error;
    if (!std::filesystem::exists(report_path(save, rank), error)) missing.push_back(rank);
  }
  return missing;
}

void wait_for_shares(const ShardedSave& save, const Deadline& deadline,
                     const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  std::chrono::milliseconds pause = kShortestLook;
  for (;;) {
    const bool is_last = deadline.passed() || stop.stop_requested();
    const std::vector<int> missing = missing_ranks(save);
    if (missing.empty()) return;
    if (is_last) {
      throw TimeoutError(
          {.operation = concat("save ", save.directory), .ranks = missing},
          concat("the shard of rank ", join_numbers(missing),
                 stop.stop_requested()
                     ? " is missing, and the run ends; wait for the save before the end"
                     : " is missing; check the log of that rank, and that all ranks see the "
                       "directory"));
    }
    never.wait_for(lock, stop, std::min(pause, deadline.remaining()), [] { return false; });
    pause = std::min(2 * pause, kLongestLook);
  }
}

/// One manifest of the ranks' reports.
SnapshotManifest joined_manifest(const ShardedSave& save,
                                 const std::vector<std::string>& model_names) {
  SnapshotManifest manifest{.save_id = save.save_id,
                            .epoch = save.epoch,
                            .step = save.step,
                            .world_size = save.world_size};
  std::map<std::string, ManifestTensor> model;
  std::vector<ManifestTensor> others;
  for (int rank = 0; rank < save.world_size; ++rank) {
    SnapshotManifest report = read_manifest(report_path(save, rank));
    for (ManifestTensor& tensor : report.tensors) {
      tensor.file = static_cast<std::size_t>(rank);
      const std::string name = tensor.name;
      if (name.starts_with("model.")) {
        model.emplace(name, std::move(tensor));
      } else {
        others.push_back(std::move(tensor));
      }
    }
    manifest.files.push_back(std::move(report.files.front()));
  }
  for (const std::string& name : model_names) {
    const auto found = model.find("model." + name);
    if (found == model.end()) {
      throw UsageError(concat("save ", save.directory, ": no rank has written '", name,
                              "'; all ranks must save the same model"));
    }
    manifest.tensors.push_back(found->second);
  }
  manifest.tensors.insert(manifest.tensors.end(), others.begin(), others.end());
  return manifest;
}

/// Best effort: what stays costs space, and nobody reads it.
void remove_others(const std::filesystem::path& directory, const SnapshotManifest& manifest) {
  std::set<std::string> kept = {kManifestName};
  for (const ManifestFile& file : manifest.files) kept.insert(file.name);
  std::error_code error;
  std::vector<std::filesystem::path> others;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().native();
    if (name.starts_with("rank") && kept.count(name) == 0) others.push_back(entry->path());
  }
  for (const auto& path : others) std::filesystem::remove(path, error);
}

void check_digest(const ReadableFile& file, const ManifestFile& expected) {
  if (file.size_bytes() != expected.digest.size_bytes) {
    throw CorruptFile(concat("verify ", file.path(), ": it has ", file.size_bytes(), " bytes, ",
                             expected.digest.size_bytes,
                             " were written; it is truncated, or of "
                             "another snapshot"));
  }
  if (digest_of(file) != expected.digest) {
    throw CorruptFile(concat("verify ", file.path(),
                             ": its checksum is not that of the manifest; it was damaged after it "
                             "was written"));
  }
}

}  // namespace

c10::IValue share_value(const Snapshot& share, const std::string& save_id) {
  const c10::IValue value = snapshot_value(share);
  find_value(value, "lockstep").toGenericDict().insert_or_assign(kShareMark, save_id);
  return value;
}

void write_share(const ShardedSave& save, int rank, const c10::IValue& value,
                 const GatherWhole& gather) {
  make_snapshot_directory(save.directory);
  sync_directory(save.directory.parent_path());
  const std::string name = share_name(save, rank) + ".pt";
  SnapshotManifest report{.save_id = save.save_id,
                          .epoch = save.epoch,
                          .step = save.step,
                          .world_size = save.world_size};
  report.files = {{.name = name, .digest = save_file(save.directory / name, value, {}, gather)}};
  report.tensors = described_tensors(value);
  write_text(report_path(save, rank), manifest_text(report));
}

void complete_sharded(const ShardedSave& save, const std::vector<std::string>& model_names,
                      const Deadline& deadline, const std::stop_token& stop) {
  wait_for_shares(save, deadline, stop);
  const SnapshotManifest manifest = joined_manifest(save, model_names);
  write_text(save.directory / kManifestName, manifest_text(manifest));
  failpoint("save.written");
  remove_others(save.directory, manifest);
}

Snapshot load_sharded(const std::filesystem::path& directory) {
  return load_sharded(directory, load_verified);
}

Snapshot load_sharded(const std::filesystem::path& directory,
                      const std::function<c10::IValue(const ReadableFile& file)>& load) {
  const SnapshotManifest manifest = read_manifest(directory / kManifestName);
  std::vector<Snapshot> shares;
  for (std::size_t i = 0; i < manifest.files.size(); ++i) {
    const ReadableFile file(directory / manifest.files[i].name);
    check_digest(file, manifest.files[i]);
    const std::string source = concat("load ", file.path().string());
    const c10::IValue value = load(file);
    std::vector<ManifestTensor> expected;
    std::ranges::copy_if(manifest.tensors, std::back_inserter(expected),
                         [&](const ManifestTensor& tensor) { return tensor.file == i; });
    for (ManifestTensor& tensor : expected) tensor.file = 0;
    const c10::IValue about = entry(value, "lockstep", source);
    if (described_tensors(value) != expected || !about.isGenericDict() ||
        find_value(about, kShareMark) != c10::IValue(manifest.save_id)) {
      throw CorruptFile(concat(source,
                               ": it does not hold what the manifest says; it is of "
                               "another save"));
    }
    shares.push_back(snapshot_from(value, source));
  }
  return join_shares(std::move(shares), manifest);
}

void verify_sharded(const std::filesystem::path& directory) {
  const SnapshotManifest manifest = read_manifest(directory / kManifestName);
  for (const ManifestFile& expected : manifest.files) {
    check_digest(ReadableFile(directory / expected.name), expected);
  }
}

}  // namespace lockstep::inline internal
