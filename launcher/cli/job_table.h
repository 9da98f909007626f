#pragma once

#include <string>
#include <vector>

#include "launcher/status/running_jobs.h"

namespace lockstep::inline internal {

/// A table of jobs, one line each, aligned, below a line of headings; with `workers` also a line
/// for each worker on this machine, below its job.
std::string job_table(const std::vector<RunningJob>& jobs, bool workers);

/// "5 s", "3 min", "2 h 5 min", "3 d 4 h".
std::string duration_text(double seconds);

}  // namespace lockstep::inline internal
