#pragma once

#include <cstdint>
#include <cstdlib>

namespace lockstep::inline internal {

/// Seeds of a simulation, `first` to `last` - 1.
struct SimulatedSeeds {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  bool is_replay = false;  ///< one seed, from LOCKSTEP_SIMULATION_SEED
};

/// LOCKSTEP_SIMULATION_SEED=N replays seed N, LOCKSTEP_SIMULATION_SEEDS=N runs N seeds; else
/// `usual`, or `sanitized` under a sanitizer, where the code is ten times slower.
inline SimulatedSeeds simulated_seeds([[maybe_unused]] std::uint64_t usual,
                                      [[maybe_unused]] std::uint64_t sanitized) {
  if (const char* const replayed = std::getenv("LOCKSTEP_SIMULATION_SEED")) {
    const std::uint64_t seed = std::strtoull(replayed, nullptr, 10);
    return {.first = seed, .last = seed + 1, .is_replay = true};
  }
  if (const char* const wanted = std::getenv("LOCKSTEP_SIMULATION_SEEDS")) {
    return {.last = std::strtoull(wanted, nullptr, 10)};
  }
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return {.last = sanitized};
#else
  return {.last = usual};
#endif
}

}  // namespace lockstep::inline internal
