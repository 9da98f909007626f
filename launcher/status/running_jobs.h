#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "launcher/supervise/job_status.h"

namespace lockstep::inline internal {

/// In the directory of a launcher's own.
inline constexpr const char* kControlSocketName = "control";

/// A launcher of this user on this machine.
struct RunningJob {
  pid_t pid = 0;
  std::filesystem::path socket{};
  /// Nothing when the launcher does not answer: it is stopped, or hangs.
  std::optional<JobStatus> status{};
  std::string trouble{};
  /// The shortest that tells it from the others: its id, or its pid.
  std::string name{};
};

/// All that run now, in the order of their start. Takes at most two seconds, even where one does
/// not answer.
std::vector<RunningJob> running_jobs();

/// Gives them their names: ids that somebody gave and that only one has, else pids.
void name_jobs(std::vector<RunningJob>& jobs);

/// The one of that id, name or pid; with an empty text the only one there is.
/// Errors: UsageError that lists those there are.
const RunningJob& find_job(const std::vector<RunningJob>& jobs, const std::string& text);

}  // namespace lockstep::inline internal
