// Jobs of one to four ranks that run a training loop over the recovery's state machine, a program's
// own or one that repeats a step which throws, with deaths
// at any point, errors on one rank alone, programs that throw, standby workers and other numbers of
// ranks: whatever happens, nobody waits for ever, and each step, evaluation and snapshot is made
// once, from one state.
#include <algorithm>
#include <array>
#include <cstdio>

#include <gtest/gtest.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/simulated_seeds_testing.h"
#include "lockstep/recovery/internal/simulated_training.h"

namespace lockstep {
namespace {

SimulatedTrainingOptions draw_training(std::uint64_t seed) {
  std::mt19937_64 random(seed ^ 0x5eedULL);
  const auto draw = [&](int least, int most) {
    return least + static_cast<int>(random() % static_cast<std::uint64_t>(most - least + 1));
  };
  const auto once_in = [&](int times) { return draw(1, times) == 1; };
  SimulatedTrainingOptions options{.seed = seed,
                                   .ranks = draw(1, 4),
                                   .standby_workers = once_in(4) ? 1 : 0,
                                   .epochs = draw(1, 3),
                                   .batches = draw(1, 4),
                                   .accumulation = draw(1, 2),
                                   .optimizers = draw(1, 2),
                                   .exchanges_buffers = once_in(3),
                                   .evaluates_in_step = once_in(6),
                                   .ends_in_loop = once_in(3),
                                   .gathers_in_tail = once_in(2),
                                   .evaluate_every = once_in(2) ? draw(1, 3) : 0,
                                   .evaluates_epochs = once_in(2),
                                   .save_every = once_in(3) ? draw(1, 3) : 0,
                                   .extra_update_every = once_in(10) ? draw(1, 3) : 0,
                                   .memory_every = once_in(3) ? draw(1, 3) : 0,
                                   .check_replicas_every = once_in(3) ? draw(1, 3) : 0,
                                   .owns_loop = once_in(3),
                                   .snapshot_every = once_in(3) ? draw(1, 3) : 0,
                                   .whole_every = once_in(3) ? draw(2, 3) : 1};
  options.keeps_shards = !options.owns_loop && once_in(3);
  if (options.keeps_shards) {
    options.optimizers = 1;
    options.memory_every = 0;
  }
  options.completes_steps = !options.owns_loop && once_in(2);
  return options;
}

SimulatedFault draw_fault(SimulatedTraining& job) {
  const int drawn = job.draw(1, 12);
  if (drawn <= 6) return SimulatedFault::kKill;
  if (drawn <= 7) return SimulatedFault::kKillTwo;
  if (drawn <= 10) return SimulatedFault::kCollectiveFails;
  if (drawn <= 11) return SimulatedFault::kProgramThrows;
  return SimulatedFault::kResize;
}

// Returns what should not have been.
std::string simulate_training(std::uint64_t seed, bool traces, RecoveryCoverage& coverage) {
  SimulatedTrainingOptions options = draw_training(seed);
  options.traces = traces;
  SimulatedTraining job(options, &coverage);
  // In quiet times, or soon after one another.
  const int longest = job.draw(1, 2) == 1 ? 20 : 200;
  for (int faults = job.draw(0, 8); faults > 0; --faults) {
    for (int ticks = job.draw(0, longest); ticks > 0 && job.run_once(); --ticks) {
    }
    job.inject(draw_fault(job));
  }
  job.run();
  return job.violation().empty() ? "" : concat(job.violation(), "\n", job.describe());
}

// Prints how often each action was carried out in each phase. Returns those that never were.
std::string print_recovery_coverage(const RecoveryCoverage& coverage) {
  std::string missing;
  for (std::size_t action = 0; action < coverage[0].size(); ++action) {
    std::uint64_t sum = 0;
    for (std::size_t phase = 0; phase < coverage.size(); ++phase) {
      const std::uint64_t count = coverage[phase][action];
      sum += count;
      if (count == 0) continue;
      std::printf("%-11s %-28s %9s\n", name_of(static_cast<RecoveryPhase>(phase)),
                  name_of(static_cast<RecoveryAction>(action)), std::to_string(count).c_str());
    }
    if (sum == 0) missing += concat(name_of(static_cast<RecoveryAction>(action)), "\n");
  }
  return missing;
}

TEST(RecoverySimulation, ManySeeds) {
  const SimulatedSeeds seeds = simulated_seeds(5'000, 200);
  RecoveryCoverage coverage{};
  for (std::uint64_t seed = seeds.first; seed < seeds.last; ++seed) {
    const std::string violation = simulate_training(seed, seeds.is_replay, coverage);
    ASSERT_EQ(violation, "") << "LOCKSTEP_SIMULATION_SEED=" << seed;
  }
  // These programs have no section in another one, and each rank calls what the others call.
  const std::string excepted = concat(name_of(RecoveryAction::kRunAlone), "\n",
                                      name_of(RecoveryAction::kFailPositionsDiffer), "\n");
  if (seeds.last - seeds.first >= 2'000) {
    EXPECT_EQ(print_recovery_coverage(coverage), excepted) << "never carried out";
  }
}

}  // namespace
}  // namespace lockstep
