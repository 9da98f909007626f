#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "diagnose/capture/recent_calls.h"
#include "diagnose/verdict/generation_outcome.h"
#include "diagnose/verdict/process_stacks.h"
#include "diagnose/verdict/python_stacks.h"

namespace lockstep::inline internal {

/// The collective in which a rank's deadline expired.
struct AwaitedCall {
  std::string operation{};
  std::string group{};
  std::optional<std::uint64_t> sequence{};
  std::chrono::milliseconds waited{};
};

/// What is known about a worker of this machine at that time.
struct RankPlace {
  WorkerExit worker{};
  std::vector<RecentCalls::Call> calls{};  ///< newest first; empty: not a Lockstep program
  ProcessStacks stacks{};
  std::vector<PythonThread> python{};  ///< empty: not a Python program
};

/// Where the main thread is, with the innermost call in the program's own code: "at::conv2d(...),
/// called from work(int) train.cpp:88"; for Python the Python code. Empty: unknown.
std::string main_place(const RankPlace& rank);

/// Whether the rank is in a collective, or leaving one: it is not the late rank.
bool waits(const RankPlace& rank);

/// For each rank whether it is late: others wait for it and it waits for none, or a signal has
/// stopped it. If there is no such rank, ranks that wait for others elsewhere are late.
/// `awaited`: as in hang_verdict.
std::vector<bool> find_late(const std::vector<RankPlace>& ranks,
                            const std::optional<AwaitedCall>& awaited);

/// Which rank is late and where all ranks are, in lines for people. `awaited`: empty if only ranks
/// of another machine wait, whose report is in `cause`.
std::string hang_verdict(const std::vector<RankPlace>& ranks,
                         const std::optional<AwaitedCall>& awaited, const std::string& cause);

/// All threads of a rank with all their frames, for a file.
std::string all_stacks(const RankPlace& rank);

}  // namespace lockstep::inline internal
