#pragma once

#include <string>
#include <vector>

#include "diagnose/verdict/attempt_outcome.h"

/// How reports name workers and tell of their ends.
namespace lockstep::inline internal {

/// "exit code 3", "killed by SIGSEGV".
std::string describe_end(const WorkerExit& exit);

/// What follows "failed": ": exit code 3", ": killed by SIGSEGV at address 0x0 in train() a.cpp:4",
/// ": exit code 1: ValueError: bad", ": ValueError: bad, then stopped with SIGTERM".
std::string describe_failure(const WorkerExit& exit);

/// "ranks 0-2,5" for 5, 0, 1, 2.
std::string rank_list(std::vector<int> ranks);

/// "rank 1 (local rank 1, pid 4242)".
std::string describe_worker(const WorkerExit& exit);

/// " in step 60"; empty where it is not known.
std::string describe_step(const WorkerExit& exit);

/// Where a worker was that left a crash report: its thread, its stack and its last collectives, as
/// lines, each begun with "lockstep: ".
std::string describe_crash(const WorkerExit& exit);

}  // namespace lockstep::inline internal
