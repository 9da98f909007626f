#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "launcher/supervise/job_status.h"

namespace lockstep::inline internal {

/// Name of the control socket in a launcher's temporary directory.
inline constexpr const char* kControlSocketName = "control";

/// A launcher of this user on this machine.
struct RunningJob {
  pid_t pid = 0;
  std::filesystem::path socket{};
  /// Empty if the launcher does not answer: it is stopped or hangs.
  std::optional<JobStatus> status{};
  std::string trouble{};
  /// Shortest unambiguous name: the id or the pid.
  std::string name{};
};

/// All running launchers, in order of their start. Takes at most two seconds, even if one does not
/// answer.
std::vector<RunningJob> running_jobs();

/// Sets the names: an id that a user gave and that is unique, else the pid.
void name_jobs(std::vector<RunningJob>& jobs);

/// Finds a job by id, name or pid; with an empty text the only job.
/// Errors: UsageError with the list of jobs.
const RunningJob& find_job(const std::vector<RunningJob>& jobs, const std::string& text);

}  // namespace lockstep::inline internal
