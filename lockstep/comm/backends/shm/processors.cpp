#include "lockstep/comm/backends/shm/processors.h"

#include <algorithm>
#include <bit>

#include "lockstep/os/machine/affinity.h"
#include "lockstep/os/machine/machine.h"

namespace lockstep::shm {

Processors own_processors(int local_ranks) {
  Processors own{.quota = static_cast<std::uint32_t>(usable_cpu_count(Processors::kMost)),
                 .local_ranks = static_cast<std::uint32_t>(local_ranks),
                 .allowed = {}};
  for (const int cpu : allowed_cpus()) {
    const auto index = static_cast<std::size_t>(cpu);
    own.allowed[index / 64] |= std::uint64_t{1} << index % 64;
  }
  return own;
}

bool run_side_by_side(std::span<const Processors* const> ranks) {
  auto together = ranks[0]->allowed;
  bool same = true;
  std::uint32_t quota = ranks[0]->quota;
  std::uint32_t needed = static_cast<std::uint32_t>(ranks.size());
  for (const Processors* const rank : ranks) {
    same = same && rank->allowed == ranks[0]->allowed;
    quota = std::min(quota, rank->quota);
    for (std::size_t word = 0; word < together.size(); ++word) {
      together[word] |= rank->allowed[word];
    }
  }
  if (same) {
    for (const Processors* const rank : ranks) needed = std::max(needed, rank->local_ranks);
  }
  std::uint32_t count = 0;
  for (const std::uint64_t word : together)
    count += static_cast<std::uint32_t>(std::popcount(word));
  return needed <= std::min(count, quota);
}

}  // namespace lockstep::shm
