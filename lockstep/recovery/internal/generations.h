#pragma once

#include <cstdint>
#include <functional>

#include "lockstep/comm/process_group.h"
#include "lockstep/recovery/internal/launcher_link.h"

namespace lockstep::inline internal {

/// What a process does in a job whose ranks die and come, and who outlives its own group.
struct GenerationParts {
  /// Meets the others, and works until the job is done. Within its waits it calls check_if_over().
  std::function<void()> live;
  /// Gives up the step in flight, and lets go of all that holds the group, which ends meanwhile.
  /// Returns the number of steps that are done.
  std::function<std::int64_t()> leave;
  /// Called while it waits for a place: what it throws ends the job for this process.
  std::function<void()> while_waiting = [] {};
};

/// Calls `live` once a generation, until it returns: under `lockstep run --max-restarts`, when a
/// rank is lost or machines come and go, the processes that stay leave their group, and live anew
/// with the next. Elsewhere it is called once.
/// `reads_within`: unless the process hangs, it looks for word of the launcher so often.
/// Errors: what `live` throws, but for PeerLost, PeerFailed, TimeoutError and CommError where the
/// launcher can be asked for another generation; PeerLost when the launcher has ended.
void live_through_generations(LauncherLink& link, std::chrono::milliseconds reads_within,
                              const GenerationParts& parts);

/// Throws where the launcher has ended this generation: an error that ends_generation().
void check_if_over(const LauncherLink& link);

/// Whether a process survives the error, with a place in the next generation. Others are the
/// program's own.
bool ends_generation(const Error& error);

/// `leave` lets go of the group and returns the number of steps that are done; then the launcher
/// knows that this process has left, and why.
void leave_generation(LauncherLink& link, const Error& why,
                      const std::function<std::int64_t()>& leave);

/// Ends the default group, of which `group` is a copy or empty: others that wait in a collective
/// for this rank go on with an error at once.
void abandon_default_group(ProcessGroup& group);

}  // namespace lockstep::inline internal
