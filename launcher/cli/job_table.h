#pragma once

#include <string>
#include <vector>

#include "launcher/status/running_jobs.h"

namespace lockstep::inline internal {

/// A line for each job, aligned, below a line of headings; with `workers` a line for each worker of
/// this machine below its job.
std::string job_table(const std::vector<RunningJob>& jobs, bool workers);

/// "5 s", "3 min", "2 h 5 min", "3 d 4 h".
std::string duration_text(double seconds);

}  // namespace lockstep::inline internal
