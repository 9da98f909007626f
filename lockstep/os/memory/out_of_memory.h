#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace lockstep::inline internal {

/// Tells whether the kernel has killed a process for want of memory: by the counter of the memory
/// cgroup that this process is in (version 1 or 2), else by that of the whole machine.
/// Threads: one. Errors: none; a system that does not count tells nothing.
class OutOfMemoryKills {
 public:
  /// Counts from now on. `root` stands for "/".
  explicit OutOfMemoryKills(const std::filesystem::path& root = "/");

  /// Whose memory was short since, and how much there is: "its memory cgroup has a limit of 512
  /// MB". Nothing when nobody was killed.
  std::optional<std::string> since() const;

 private:
  std::filesystem::path counter_;  ///< a file with a line "oom_kill N"
  std::filesystem::path limit_;    ///< empty: of the whole machine
  std::uint64_t before_ = 0;
};

}  // namespace lockstep::inline internal
