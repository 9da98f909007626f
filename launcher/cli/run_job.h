#pragma once

#include "launcher/job/launch_options.h"
#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// Runs a job's workers on this machine, together with the job's other machines, and serves the
/// job's status and control meanwhile. `health`: a listening socket on which any client may read
/// the status; may be invalid. Returns launch()'s exit code.
/// Errors: those of launch() and meet().
int run_job(const LaunchOptions& options, UniqueFd health = UniqueFd());

}  // namespace lockstep::inline internal
