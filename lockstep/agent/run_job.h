#pragma once

#include "lockstep/launch/launch_options.h"

namespace lockstep {

/// Runs a job's workers on this machine to their end, together with the job's other machines, and
/// lets it be looked at meanwhile. Returns what launch() does.
/// Errors: those of launch() and meet().
int run_job(const LaunchOptions& options);

}  // namespace lockstep
