#pragma once

#include "launcher/job/launch_options.h"
#include "launcher/rendezvous/job_rendezvous.h"
#include "launcher/supervise/live_job.h"

namespace lockstep::inline internal {

/// Runs a job's workers on this machine until all have ended, with restarts as the options say.
/// Returns the exit code: 0 when all workers succeeded, the first failed worker's (128 + n when
/// signal n ended it), 128 + n when signal n stopped the launcher. Tells the user on stderr.
/// `monitor` is opened once there is something to be seen, and closed at the end.
/// Threads: call from the main thread of a process with no other thread and no other children: it
/// takes over their reaping and the signals to handle.
/// Errors: those of JobRendezvous::wait(); ProgramError when the program cannot be run; SystemError
/// when the port is taken or logs cannot be written; UsageError for a master address that does not
/// resolve. No worker is left.
int launch(const LaunchOptions& options, JobRendezvous& rendezvous, JobMonitor& monitor);

/// What the options mean for the rendezvous.
RendezvousRules rules_of(const LaunchOptions& options);

}  // namespace lockstep::inline internal
