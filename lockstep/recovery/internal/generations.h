#pragma once

#include <cstdint>
#include <functional>

#include "lockstep/comm/process_group.h"
#include "lockstep/recovery/internal/launcher_link.h"

// How a process leaves a generation of its job, and keeps its state.

namespace lockstep::inline internal {

/// Throws an error that ends_generation() if the launcher has ended this generation.
void check_if_over(const LauncherLink& link);

/// Whether a process survives the error and gets a rank in the next generation. Other errors are
/// the program's own.
bool ends_generation(const Error& error);

/// Leaves the generation: `leave` releases the group and returns the number of completed steps;
/// then the launcher is notified of that and of the reason.
void leave_generation(LauncherLink& link, const Error& why,
                      const std::function<std::int64_t()>& leave);

/// Ends the default group, of which `group` is a copy or empty: ranks that wait in a collective for
/// this one get an error at once.
void abandon_default_group(ProcessGroup& group);

}  // namespace lockstep::inline internal
