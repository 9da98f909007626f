#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep::parameter_server::inline internal {

/// What a server has heard of a trainer.
struct Heard {
  std::int64_t signs = 0;  ///< its calls so far, and what they were answered
  bool waits = false;      ///< for an answer: nothing can come from it
};

/// Finds trainers that live and do nothing: stopped, or stuck in a step. Threads: one.
class TrainerWatch {
 public:
  using Instant = std::chrono::steady_clock::time_point;

  explicit TrainerWatch(std::chrono::milliseconds limit) : limit_(limit) {}

  /// The first that has not called, nor waited for an answer, for longer than the limit.
  std::optional<int> find_silent(const std::vector<Heard>& heard, Instant now);

 private:
  struct Last {
    std::int64_t signs = -1;
    Instant instant{};
  };
  const std::chrono::milliseconds limit_;
  std::vector<Last> last_;
};

}  // namespace lockstep::parameter_server::inline internal
