#pragma once

#include <cstdint>
#include <cstdlib>

namespace lockstep::inline internal {

/// The seeds of a simulation, from `first` up to `last`.
struct SimulatedSeeds {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  bool is_replay = false;  ///< of one, by LOCKSTEP_SIMULATION_SEED
};

/// LOCKSTEP_SIMULATION_SEED=N replays one, LOCKSTEP_SIMULATION_SEEDS=N runs as many; else `usual`,
/// or `sanitized` under a sanitizer, where the same code runs at a tenth of the speed.
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
