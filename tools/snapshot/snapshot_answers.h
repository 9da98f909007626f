#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

/// The actions of `lockstep snapshot`, a file each. Paths are snapshots of either kind, or, where
/// it says so, weights of other programs. Errors of all: UsageError, SystemError, CorruptFile.
namespace lockstep::inline internal {

struct SnapshotAnswer {
  std::string text;  ///< for standard output
  int exit_code = 0;
};

/// The snapshots of a directory, newest first, as a table or as JSON. Reads no tensors.
SnapshotAnswer list_answer(const std::filesystem::path& directory, bool json);

/// Whether each is whole, and if not which region of which file is damaged, or that it is no file
/// that can be verified. A directory stands for all snapshots in it. Also takes weights. Exit code
/// 1 if one is not whole.
SnapshotAnswer verify_answer(const std::vector<std::filesystem::path>& paths, bool json);

/// Metadata, every tensor with its statistics, the optimizer's groups. Also takes weights.
SnapshotAnswer show_answer(const std::filesystem::path& path, bool json);

struct DiffRequest {
  std::filesystem::path first{};
  std::filesystem::path second{};
  std::string part = {};  ///< model, all; empty: all of two snapshots, else the weights
};

/// The differences of two, tensor by tensor. Exit code 1 where there is one. Also takes weights.
SnapshotAnswer diff_answer(const DiffRequest& request, bool json);

struct ExportRequest {
  std::filesystem::path source{};
  std::filesystem::path target{};
  std::string format = {};     ///< safetensors, pt; empty: by the target's name
  std::string part = "model";  ///< model, optimizer, ema
  std::string prefix = {};     ///< put before each name, as "module."
  bool force = false;          ///< replace the target
};

/// Writes a part in a format that other programs read. Also takes weights.
SnapshotAnswer export_answer(const ExportRequest& request);

struct ConvertRequest {
  std::filesystem::path source{};
  std::filesystem::path target{};
  std::string format = {};     ///< safetensors, dcp, pt; empty: by the target's name
  std::string part = "model";  ///< model, all
  int shards = 0;              ///< files of a folder; 0: not given
  bool force = false;          ///< replace the target
};

/// Verifies a checkpoint of any format where it has checksums, and writes its tensors in another.
/// A line on standard error says how far it is.
SnapshotAnswer convert_answer(const ConvertRequest& request);

struct PruneRequest {
  std::filesystem::path directory;
  int keep = 1;  ///< whole ones, at least 1
  bool dry_run = false;
};

/// Deletes all but the newest complete snapshots, and the files of incomplete saves before them.
/// Damaged snapshots are not counted; those after the newest complete one stay.
SnapshotAnswer prune_answer(const PruneRequest& request);

}  // namespace lockstep::inline internal
