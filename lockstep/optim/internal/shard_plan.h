#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::inline internal {

/// What the plan needs to know of a parameter.
struct ShardCandidate {
  std::int64_t bytes = 0;
  /// A frozen parameter has no optimizer state, for now.
  bool is_frozen = false;
};

/// The rank that keeps the state of each parameter and updates it. Whole parameters, so that any
/// optimizer that treats each by itself can be sharded.
///
/// Sorted greedy, as ZeroRedundancyOptimizer's: group by group, the largest first, each to the rank
/// with the fewest bytes so far, of equal ones the first; frozen parameters come after the others
/// of their group. A group that is added changes nothing for those before it. No rank gets more
/// than the mean of all ranks and one parameter.
std::vector<std::vector<int>> plan_shards(const std::vector<std::vector<ShardCandidate>>& groups,
                                          int world_size);

}  // namespace lockstep::inline internal
