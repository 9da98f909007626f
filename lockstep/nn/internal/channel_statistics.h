#pragma once

namespace lockstep::inline internal {

/// What one channel's values amount to: as much as their mean and variance need.
struct ChannelStatistics {
  double count = 0;
  double mean = 0;
  double squares = 0;  ///< Sum of squared deviations from the mean.
};

/// The statistics of both sets of values together; a set may be empty. After Chan, Golub and
/// LeVeque, "Algorithms for Computing the Sample Variance" (The American Statistician 37(3), 1983).
ChannelStatistics combine(const ChannelStatistics& a, const ChannelStatistics& b);

}  // namespace lockstep::inline internal
