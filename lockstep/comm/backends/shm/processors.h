#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace lockstep::shm {

/// What one rank may run on, as it lies in shared memory for its peers.
struct Processors {
  static constexpr int kMost = 8192;  ///< the most that Linux supports

  std::uint32_t quota;                            ///< processors whose time its control group gets
  std::uint32_t local_ranks;                      ///< of the job on this machine
  std::array<std::uint64_t, kMost / 64> allowed;  ///< a bit each
};

/// This thread's; `local_ranks` is the job's.
Processors own_processors(int local_ranks);

/// Whether all ranks of a group can run at the same time: whether to spin. Ranks that are bound to
/// processors of their own need as many as there are ranks in the group; ranks that may all run on
/// the same ones share these with the job's other ranks. The same answer on every rank.
bool run_side_by_side(std::span<const Processors* const> ranks);

}  // namespace lockstep::shm
