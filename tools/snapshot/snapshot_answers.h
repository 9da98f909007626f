#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

/// What `lockstep snapshot` does, an answer a file. Paths are snapshots of either kind; where it
/// says so, weights of other programs too. Errors of all: UsageError, SystemError, CorruptFile.
namespace lockstep::inline internal {

struct SnapshotAnswer {
  std::string text;  ///< For standard output.
  int exit_code = 0;
};

/// The snapshots of a directory, newest first; reads no tensors. As a table, or as JSON.
SnapshotAnswer list_answer(const std::filesystem::path& directory, bool json);

/// Whether each is whole, and if not which region of which file is damaged. A directory stands for
/// all snapshots in it. Weights of other programs too, as far as their formats tell. Exit code 1
/// where one is not.
SnapshotAnswer verify_answer(const std::vector<std::filesystem::path>& paths, bool json);

/// What it holds: metadata, every tensor with its statistics, the optimizer's groups. Weights of
/// other programs too.
SnapshotAnswer show_answer(const std::filesystem::path& path, bool json);

/// How two differ, snapshots or weights, tensor by tensor; of weights and a snapshot the weights.
/// Exit code 1 where they do.
SnapshotAnswer diff_answer(const std::filesystem::path& first, const std::filesystem::path& second,
                           bool json);

struct ExportRequest {
  std::filesystem::path source;
  std::filesystem::path target;
  std::string format = "pt";   ///< safetensors, pt, accelerate
  std::string part = "model";  ///< model, optimizer, ema
  std::string prefix = {};     ///< Put before each name, as "module.".
  bool force = false;          ///< Replace what is there.
};

/// Writes a part as other programs read it.
SnapshotAnswer export_answer(const ExportRequest& request);

struct PruneRequest {
  std::filesystem::path directory;
  int keep = 1;  ///< Whole ones, at least 1.
  bool dry_run = false;
};

/// Deletes all but the newest whole snapshots, and what unfinished saves before them left. Damaged
/// ones are not counted, and those after the newest whole one stay.
SnapshotAnswer prune_answer(const PruneRequest& request);

}  // namespace lockstep::inline internal
