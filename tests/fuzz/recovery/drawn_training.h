#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::testing {

/// A program that a seed makes up. The same in every process of a job, whatever happens
/// to it, since nothing but the seed and the number of ranks goes into it.
struct DrawnTraining {
  enum class Loop { kResilient, kPlain, kServer };
  enum class Optimizer { kSgd, kMomentum, kAdam, kAdamW };

  Loop loop = Loop::kResilient;
  /// 0: it changes while the job runs. Every rank has the same data then, so that the averages of
  /// 1, 2 and 4 ranks have the same bits.
  int world_size = 2;
  std::int64_t steps = 30;
  std::int64_t width = 8;  ///< of the hidden layer
  Optimizer optimizer = Optimizer::kSgd;
  bool has_schedule = false;
  bool has_dropout = false;
  bool has_batch_norm = false;
  bool has_sync_batch_norm = false;  ///< converted in each generation; only with has_batch_norm
  bool has_large_layer = false;      ///< its gradient is exchanged by itself
  bool is_ragged = false;            ///< ranks have other numbers of samples, weighted by them
  int accumulation_steps = 1;        ///< backward passes of a step
  std::vector<std::vector<int>> groups = {};  ///< made by new_group() in each generation
  std::string group_backend = {};             ///< of these groups; empty: the default group's
  int groups_every = 0;                       ///< steps between sums over these groups; 0: unused
  int evaluate_every = 0;  ///< steps between evaluations, after the update; 0: none
  int memory_every = 0;
  int save_interval = 0;
  bool has_one_copy = false;  ///< per machine, where ranks share memory
  int check_replicas_every = 0;

  bool is_elastic() const { return world_size == 0; }

  /// The seed's draw. Of one seed, number of ranks and loop always the same.
  static DrawnTraining of(std::uint64_t seed, int world_size, Loop loop);

  /// "2 ranks, 30 steps, Adam, …"
  std::string text() const;
};

}  // namespace lockstep::testing
