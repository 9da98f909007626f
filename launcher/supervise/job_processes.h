#pragma once

#include <filesystem>
#include <string>

#include "launcher/supervise/group_guard.h"
#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// What all processes of a job on this machine have in common, whatever sessions, parents and
/// environments they have made for themselves, so that none is overlooked when the job ends: a mark
/// in their environment, a control group where the system grants one, this process as the one that
/// adopts orphans, and a guard for the case that this process is killed.
/// Lifetime: make it before the job's files, and before workers are started.
class JobProcesses {
 public:
  /// `mark`: the job's (make_job_mark), and the value of LOCKSTEP_JOB for the workers.
  JobProcesses(std::string mark, const GuardedFiles& files);
  JobProcesses(const JobProcesses&) = delete;
  JobProcesses& operator=(const JobProcesses&) = delete;
  /// A job that ends well may leave processes; they are no longer in its control group.
  ~JobProcesses();

  /// For SpawnOptions.
  int control_group() const { return control_group_.get(); }
  GroupGuard& guard() { return guard_; }
  /// Kills what the workers have started and left. Workers themselves have to have ended.
  void kill_what_is_left() noexcept;

 private:
  std::string mark_line() const;

  const std::string mark_;
  const std::filesystem::path place_;
  GroupGuard guard_;
  UniqueFd control_group_;
};

}  // namespace lockstep::inline internal
