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

/// The collective in which a rank has waited for another in vain.
struct AwaitedCall {
  std::string operation{};
  std::string group{};
  std::optional<std::uint64_t> sequence{};
  std::chrono::milliseconds waited{};
};

/// What is known of a worker of this machine at that time.
struct RankPlace {
  WorkerExit worker{};
  std::vector<RecentCalls::Call> calls{};  ///< the newest first; empty: of a program without
  ProcessStacks stacks{};
  std::vector<PythonThread> python{};  ///< empty: of a program without
};

/// Where the main thread is, and where in the program's own code: "at::conv2d(...), called from
/// work(int) train.cpp:88"; in Python if it runs Python. Empty: not known.
std::string main_place(const RankPlace& rank);

/// It is in a collective, or gives it up: it is not what the others wait for.
bool waits(const RankPlace& rank);

/// Who is late, and where all are, in lines for people. `awaited`: nothing where only another
/// machine's ranks wait, who say so in `cause`.
std::string hang_verdict(const std::vector<RankPlace>& ranks,
                         const std::optional<AwaitedCall>& awaited, const std::string& cause);

/// All threads of a rank with all their calls, for a file.
std::string all_stacks(const RankPlace& rank);

}  // namespace lockstep::inline internal
