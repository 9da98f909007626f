#pragma once

namespace lockstep::inline internal {

/// Runs on the remote machine of a job that is started over ssh: reads a HostedRequest from
/// standard input, runs the command in a child process, and forwards signals to it. If the
/// connection to the requesting machine closes, or no line arrives within HostedRequest::silence,
/// the child gets SIGTERM, and SIGKILL after HostedRequest::patience. The child is killed if this
/// process ends.
/// Returns the child's exit code.
/// Errors: Error if the command could not be started.
int attend();

}  // namespace lockstep::inline internal
