#include "lockstep/optim/internal/shard_plan.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace lockstep::inline internal {

std::vector<std::vector<int>> plan_shards(const std::vector<std::vector<ShardCandidate>>& groups,
                                          int world_size) {
  std::vector<std::int64_t> bytes_of_rank(static_cast<std::size_t>(world_size), 0);
  std::vector<std::vector<int>> owners;
  for (const std::vector<ShardCandidate>& group : groups) {
    std::vector<std::size_t> order(group.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return std::tuple(group[a].is_frozen, -group[a].bytes) <
             std::tuple(group[b].is_frozen, -group[b].bytes);
    });
    std::vector<int>& group_owners = owners.emplace_back(group.size());
    for (const std::size_t i : order) {
      const auto least = std::min_element(bytes_of_rank.begin(), bytes_of_rank.end());
      *least += group[i].bytes;
      group_owners[i] = static_cast<int>(least - bytes_of_rank.begin());
    }
  }
  return owners;
}

}  // namespace lockstep::inline internal
