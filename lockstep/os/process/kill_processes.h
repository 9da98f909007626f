#pragma once

#include <string>

#include <sys/types.h>

namespace lockstep::inline internal {

/// Kills and reaps the children of this process except one, repeatedly, until there are no more.
/// After adopt_orphans() these include orphaned descendants, in any session and with any
/// environment.
/// Threads: only in a process with one thread.
/// Errors: none; gives up on processes that are stuck in the kernel.
void kill_children_except(pid_t kept) noexcept;

/// Kills all processes that were started with this line, NAME=value, in their environment, in any
/// session and below any process, until there are none. It does not find processes of other users
/// and those whose environment changed at an exec. It spares this process.
/// Errors: none; gives up on processes that are stuck in the kernel.
void kill_marked_processes(const std::string& line) noexcept;

}  // namespace lockstep::inline internal
