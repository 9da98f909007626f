#pragma once

#include <string>

#include <sys/types.h>

namespace lockstep::inline internal {

/// Kills and reaps the children of this process but one, again and again, until there are no more:
/// after adopt_orphans() those whose parents have ended are its children, too, whatever session
/// they are in and whatever environment they have. Threads: only where the process has one. Errors:
/// none; gives up on what is stuck in the kernel.
void kill_children_except(pid_t kept) noexcept;

/// Kills all processes that were started with this line, NAME=value, in their environment, in
/// whatever session and below whichever process they are, until there are none. Those of other
/// users, and those that have another environment from exec on, are not found. This process is left
/// out. Errors: none; gives up on what is stuck in the kernel.
void kill_marked_processes(const std::string& line) noexcept;

}  // namespace lockstep::inline internal
