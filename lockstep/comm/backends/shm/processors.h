#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace lockstep::shm {

/// Processors that a rank may run on, in shared memory for its peers.
struct Processors {
  static constexpr int kMost = 8192;  ///< the most that Linux supports

  std::uint32_t quota;                            ///< processors whose time its control group gets
  std::uint32_t local_ranks;                      ///< of the job on this machine
  std::array<std::uint64_t, kMost / 64> allowed;  ///< a bit each
};

/// This thread's processors; `local_ranks`: number of the job's ranks on this machine.
Processors own_processors(int local_ranks);

/// Whether all ranks of a group can run at the same time, so that spinning is useful. Ranks bound
/// to different processors need one each; ranks that may run on the same processors share them with
/// the job's other ranks. The same result on every rank.
bool run_side_by_side(std::span<const Processors* const> ranks);

}  // namespace lockstep::shm
