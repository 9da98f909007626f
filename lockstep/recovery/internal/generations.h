#pragma once

#include <cstdint>
#include <functional>

#include "lockstep/comm/process_group.h"
#include "lockstep/recovery/internal/launcher_link.h"

// How a process leaves a generation of its job, and keeps its state.

namespace lockstep::inline internal {

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
