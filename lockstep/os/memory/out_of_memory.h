#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace lockstep::inline internal {

/// Reports whether the kernel has killed a process for lack of memory: from the counter of this
/// process's memory cgroup (version 1 or 2), else from the machine's.
/// Threads: one at a time.
/// Errors: none; without a counter it reports nothing.
class OutOfMemoryKills {
 public:
  /// Counts from now on. `root` replaces "/" in tests.
  explicit OutOfMemoryKills(const std::filesystem::path& root = "/");

  /// Whose memory was short since then, and its limit: "its memory cgroup has a limit of 512 MB".
  /// Empty: no process was killed.
  std::optional<std::string> since() const;

 private:
  std::filesystem::path counter_;  ///< a file with a line "oom_kill N"
  std::filesystem::path limit_;    ///< empty: the machine's
  std::uint64_t before_ = 0;
};

}  // namespace lockstep::inline internal
