#pragma once

#include <string>
#include <vector>

namespace lockstep::inline internal {

/// The command line of `lockstep snapshot`.
struct SnapshotOptions {
  enum class Action { kHelp, kList, kVerify, kShow, kDiff, kExport, kPrune };

  Action action = Action::kHelp;
  /// Of ls and prune one directory; of verify any number; of show one snapshot, of diff two.
  std::vector<std::string> paths;
  bool json = false;
  // Of export: from the first path to the second.
  std::string format;  ///< safetensors, pt, accelerate
  std::string part = "model";
  std::string prefix;
  bool force = false;
  // Of prune.
  int keep = 0;
  bool dry_run = false;
};

/// Errors: UsageError.
SnapshotOptions parse_snapshot_options(const std::vector<std::string>& arguments);

const char* snapshot_help();

}  // namespace lockstep::inline internal
