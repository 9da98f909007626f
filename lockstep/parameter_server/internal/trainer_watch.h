#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep::parameter_server::inline internal {

/// Activity of a trainer on a server.
struct TrainerActivity {
  std::int64_t signs = 0;  ///< its calls so far, and replies to them
  bool waits = false;      ///< it waits for a reply, and cannot call
};

/// Detects trainers that are alive but stopped or hung in a step.
/// Threads: one.
class TrainerWatch {
 public:
  using Instant = std::chrono::steady_clock::time_point;

  explicit TrainerWatch(std::chrono::milliseconds limit) : limit_(limit) {}

  /// The first trainer that, for longer than the limit, has neither called nor waited for a reply.
  std::optional<int> find_silent(const std::vector<TrainerActivity>& activity, Instant now);

 private:
  struct Last {
    std::int64_t signs = -1;
    Instant instant{};
  };
  const std::chrono::milliseconds limit_;
  std::vector<Last> last_;
};

}  // namespace lockstep::parameter_server::inline internal
