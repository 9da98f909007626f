#pragma once

#include <filesystem>
#include <string>

#include "lockstep/os/process/helper_process.h"

namespace lockstep::inline internal {

/// Files of a folder whose names have a prefix; an empty prefix: none.
struct GuardedFiles {
  std::filesystem::path folder{};
  std::string prefix{};
};

/// Removes everything of a job if the launcher ends in any way, even by SIGKILL. The kernel kills
/// the workers. This small process kills what they started (a script's program, data loader
/// processes), by the workers' process groups, the job's mark and its control group. It also
/// removes the job's temporary files.
/// Lifetime: create it before the files and before workers start. After the destructor nothing is
/// guarded.
class GroupGuard {
 public:
  /// `mark`: a line in the environment of all workers. `control_group`: path of the control group
  /// of all workers, which may be created later; empty: none.
  GroupGuard(const std::string& mark, const GuardedFiles& files,
             const std::filesystem::path& control_group);
  ~GroupGuard();
  GroupGuard(const GroupGuard&) = delete;
  GroupGuard& operator=(const GroupGuard&) = delete;

  pid_t pid() const { return process_.pid(); }
  void add(pid_t group);
  /// Call it when the process group is empty: the system may reuse its number then.
  void remove(pid_t group);

 private:
  HelperProcess process_;
};

}  // namespace lockstep::inline internal
