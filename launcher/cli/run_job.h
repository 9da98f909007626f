#pragma once

#include "launcher/job/launch_options.h"
#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// Runs a job's workers on this machine to their end, together with the job's other machines, and
/// lets it be looked at meanwhile, at `health` by anybody who reaches it, if that is a socket that
/// listens. Returns what launch() does.
/// Errors: those of launch() and meet().
int run_job(const LaunchOptions& options, UniqueFd health = UniqueFd());

}  // namespace lockstep::inline internal
