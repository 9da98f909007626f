#pragma once

#include <filesystem>
#include <string>

#include "launcher/supervise/group_guard.h"
#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// Finds all processes of a job on this machine when it ends, in any session and with any parent
/// and environment: by a mark in the environment, a control group if the system allows one, this
/// process as the adopter of orphans, and a guard in case this process is killed.
/// Lifetime: create it before the job's files and before workers start.
class JobProcesses {
 public:
  /// `mark`: the job's (make_job_mark), which workers get as LOCKSTEP_JOB.
  JobProcesses(std::string mark, const GuardedFiles& files);
  JobProcesses(const JobProcesses&) = delete;
  JobProcesses& operator=(const JobProcesses&) = delete;
  /// Processes that remain after a successful job leave its control group.
  ~JobProcesses();

  /// The control group's descriptor, for SpawnOptions.
  int control_group() const { return control_group_.get(); }
  GroupGuard& guard() { return guard_; }
  /// Kills processes that the workers started. The workers themselves must have ended.
  void kill_what_is_left() noexcept;

 private:
  std::string mark_line() const;

  const std::string mark_;
  const std::filesystem::path place_;
  GroupGuard guard_;
  UniqueFd control_group_;
};

}  // namespace lockstep::inline internal
