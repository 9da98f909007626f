#pragma once

#include <string>

namespace lockstep::inline internal {

/// Kills all processes that were started with this line, NAME=value, in their environment, in
/// whatever session and below whichever process they are, until there are none. Those of other
/// users, and those that have another environment from exec on, are not found. This process is left
/// out. Errors: none; gives up on what is stuck in the kernel.
void kill_marked_processes(const std::string& line) noexcept;

}  // namespace lockstep::inline internal
