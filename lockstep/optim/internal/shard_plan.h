#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::inline internal {

/// Properties of a parameter for the plan.
struct ShardCandidate {
  std::int64_t bytes = 0;
  /// A frozen parameter has no optimizer state for now.
  bool is_frozen = false;
};

/// Assigns each parameter to a rank, which keeps its state and updates it. Whole parameters, so it
/// works with any optimizer that updates each parameter independently.
///
/// Algorithm: sorted greedy, as ZeroRedundancyOptimizer's: group by group, the largest first, each
/// to the rank with the fewest bytes so far, the lowest of equal ones; frozen parameters after the
/// others of their group. A group that is added changes nothing for earlier groups. No rank gets
/// more than the mean of all ranks plus one parameter.
std::vector<std::vector<int>> plan_shards(const std::vector<std::vector<ShardCandidate>>& groups,
                                          int world_size);

}  // namespace lockstep::inline internal
