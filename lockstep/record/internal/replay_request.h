#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep::inline internal {

/// Parameters of `lockstep replay` for the Trainer in a program that it starts again, as JSON in
/// LOCKSTEP_REPLAY.
struct ReplayRequest {
  std::int64_t step = 0;   ///< the last step to make
  std::string directory;   ///< of the run, as the program names it, absolute
  std::string folder;      ///< in place of that directory; holds the snapshot to begin with
  int logical_shards = 0;  ///< of the run
};

std::string to_text(const ReplayRequest& request);

/// The request in this process's environment, if any.
/// Errors: UsageError for an invalid one.
std::optional<ReplayRequest> replay_request();

}  // namespace lockstep::inline internal
