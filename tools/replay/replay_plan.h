#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "lockstep/record/internal/hash_log.h"
#include "lockstep/snapshot/snapshot.h"

namespace lockstep::inline internal {

/// How a step of a run is made again.
struct ReplayPlan {
  std::int64_t step = 0;
  LoggedHashes logged;
  HashLog::Begin run;  ///< that made the step
  /// The newest before the step; unset: there is none, and the program begins at step 1.
  std::optional<SnapshotName> snapshot;
};

/// Errors: as read_hashes(); UsageError for a step that is not in the log, and where the program or
/// its working directory is gone.
ReplayPlan plan_replay(const std::filesystem::path& run, std::int64_t step);

/// Fills `folder`, new, as the directory of a run that has the snapshot. Its files are links: what
/// the program deletes there stays in the run. Errors: SystemError.
void make_replay_folder(const ReplayPlan& plan, const std::filesystem::path& run,
                        const std::filesystem::path& folder);

/// What `ranks` ranks have made, compared with the log.
struct ReplayVerdict {
  bool agrees = false;
  std::string line;
};
/// Pure. Errors: Error where the step is not among what they have made.
ReplayVerdict judge_replay(const ReplayPlan& plan, const LoggedHashes& made, int ranks);

}  // namespace lockstep::inline internal
