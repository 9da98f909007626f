#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::bench::same_bits {

/// Kills ranks of a job at random points of steps that are drawn from a seed: the rank that is
/// drawn arms a timer of the kernel, which sends it SIGKILL within a step's time. Each kill happens
/// once, also if its step is repeated: a file in `folder` says by whom. Lifetime: of the training.
class RandomKills {
 public:
  /// None.
  RandomKills() = default;
  RandomKills(int kills, std::int64_t steps, int seed, std::string folder);

  /// Call it at the beginning of each step. One rank always lives: kills wait until the job has
  /// several ranks and until the victim before, or of three and more ranks the one before that, is
  /// dead.
  void begin_step(std::int64_t step, int rank, int ranks);

 private:
  using Clock = std::chrono::steady_clock;
  struct Kill {
    std::int64_t step = 0;
    std::uint32_t victim = 0;  // modulo the number of ranks
    double delay = 0;          // in steps
  };
  std::string file_of(std::size_t kill) const;
  bool is_under_way(std::size_t kill) const;

  std::string folder_;
  std::vector<Kill> kills_;  // by step
  std::size_t next_ = 0;
  Clock::time_point begin_ = Clock::now();  // of the last step
};

}  // namespace lockstep::bench::same_bits
