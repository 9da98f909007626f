#pragma once

#include <string>
#include <vector>

#include "diagnose/verdict/generation_outcome.h"

/// Texts of reports about workers and their ends.
namespace lockstep::inline internal {

/// "exit code 3", "killed by SIGSEGV".
std::string describe_end(const WorkerExit& exit);

/// Text after the worker's name: "killed by SIGKILL at step 60", "exited with code 3", "killed by
/// SIGSEGV at address 0x0 in train() a.cpp:4", "exited with code 1: ValueError: bad", "killed after
/// a hang at step 60 in work() a.cpp:4: <why>".
std::string describe_failure(const WorkerExit& exit);

/// The worker, `where` and its failure. If it waited for a rank until its deadline, that rank comes
/// first: "rank 1 (pid 42) hangs in work() a.cpp:4; rank 0 (pid 41) exited with code 1: <error>".
std::string describe_fault(const WorkerExit& exit, const std::string& where);

/// The usual cause of such an end, and what to do; empty: unknown.
std::string describe_remedy(const WorkerExit& exit);

/// "ranks 0-2, 5" for 5, 0, 1, 2.
std::string rank_list(std::vector<int> ranks);

/// "rank 1 (pid 4242)"; "rank 5 (local rank 1, pid 4242)" if the local rank differs.
std::string describe_worker(const WorkerExit& exit);

/// A crash report's thread, stack and last collectives, as lines that start with "lockstep: ".
std::string describe_crash(const WorkerExit& exit);

}  // namespace lockstep::inline internal
