#pragma once

#include <span>

namespace lockstep::inline internal {

/// Statistics of one channel's values: all that mean and variance need.
struct ChannelStatistics {
  double count = 0;
  double mean = 0;
  double squares = 0;  ///< sum of squared deviations from the mean
};

/// Statistics of the union of two sets of values; a set may be empty.
/// Source: Chan, Golub and LeVeque, "Algorithms for Computing the Sample Variance" (The American
/// Statistician 37(3), 1983).
ChannelStatistics combine(const ChannelStatistics& a, const ChannelStatistics& b);

/// Of all parts, along one aligned binary tree: 0 and 1, 2 and 3, then these two, and so on; a part
/// without a right neighbour passes unchanged. At least one part; overwrites them.
ChannelStatistics combine_by_tree(std::span<ChannelStatistics> parts);

}  // namespace lockstep::inline internal
