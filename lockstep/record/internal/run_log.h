#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/os/files/append_lines.h"

namespace lockstep::inline internal {

/// Writes runs.jsonl of a training run: a line of JSON for each start and end, with the machine:
///
///     {"event": "begin", "time": 1763885000.5, "step": 0, "ranks": 2, "machine": {…},
///      "versions": {"lockstep": "0.1.0", "libtorch": "2.13.0"}}
///     {"event": "end", "time": …, "step": 120, "how": "ended"}
///
/// A run that was killed has no end.
/// Threads: one at a time.
/// Errors: SystemError.
class RunLog {
 public:
  explicit RunLog(const std::filesystem::path& folder);

  struct Begin {
    std::int64_t step = 0;  ///< steps that were made before
    int ranks = 1;
    /// Versions besides Lockstep's.
    std::vector<std::pair<std::string, std::string>> versions = {};
  };
  /// Adds a description of this machine.
  void begin(const Begin& begin);
  /// `how`: "ended", "stopped: …", "error: …", for people.
  void end(std::int64_t step, const std::string& how);

 private:
  LineLog log_;
};

}  // namespace lockstep::inline internal
