#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::inline internal {

/// How values are spread, as TensorBoard shows it.
struct Histogram {
  double least = 0;
  double most = 0;
  std::int64_t count = 0;
  double sum = 0;
  double sum_of_squares = 0;
  /// counts[i] values are below limits[i] and not below limits[i - 1].
  std::vector<double> limits = {};
  std::vector<double> counts = {};
};

/// In TensorFlow's bins, each a tenth wider than the one before, on both sides of 0; runs of empty
/// ones are made one. Values that are not finite are left out. Pure.
Histogram make_histogram(std::span<const double> values);

}  // namespace lockstep::inline internal
