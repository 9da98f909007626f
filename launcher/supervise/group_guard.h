#pragma once

#include <filesystem>
#include <string>

#include "lockstep/os/process/helper_process.h"

namespace lockstep::inline internal {

/// Files of a folder whose names begin so; an empty prefix: none.
struct GuardedFiles {
  std::filesystem::path folder{};
  std::string prefix{};
};

/// Sees to it that nothing of a job outlives the launcher, even one killed with SIGKILL. The kernel
/// kills the workers themselves; what they started (a script's program, loader processes) is killed
/// by this small process, which knows the workers' process groups, the job's mark and its
/// control group. It removes the job's temporary files, too.
/// Lifetime: make it before the files, and before workers are started. Once it is destroyed it
/// guards nothing.
class GroupGuard {
 public:
  /// `mark`: a line of the environment of all workers. `control_group`: where that of all workers
  /// is or may come to be; empty: nowhere.
  GroupGuard(const std::string& mark, const GuardedFiles& files,
             const std::filesystem::path& control_group);
  ~GroupGuard();
  GroupGuard(const GroupGuard&) = delete;
  GroupGuard& operator=(const GroupGuard&) = delete;

  pid_t pid() const { return process_.pid(); }
  void add(pid_t group);
  /// To be called once the group is empty: its number may be given to somebody else then.
  void remove(pid_t group);

 private:
  HelperProcess process_;
};

}  // namespace lockstep::inline internal
