#pragma once

namespace lockstep::inline internal {

/// The other machine's side of a job that one machine starts on others over ssh: reads from stdin
/// what `lockstep` is to do there (HostedRequest), has a child do it, and passes on signals.
/// Whoever asked for it and is gone, or cannot be heard any more, wants it to end: then the child
/// gets SIGTERM, and SIGKILL after its patience. The child dies with this process. Returns the
/// child's exit code. Errors: Error when nothing could be begun.
int attend();

}  // namespace lockstep::inline internal
