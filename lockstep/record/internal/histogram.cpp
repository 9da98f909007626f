#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "lockstep/record/internal/event.h"

namespace lockstep::inline internal {
namespace {

constexpr double kSmallest = 1e-12;
constexpr double kLargest = 1e20;
constexpr double kGrowth = 1.1;
constexpr double kInfinite = std::numeric_limits<double>::max();

// Upper ends, from the most negative to the largest double.
const std::vector<double>& bin_limits() {
  static const std::vector<double> limits = [] {
    std::vector<double> positive;
    for (double limit = kSmallest; limit < kLargest; limit *= kGrowth) positive.push_back(limit);
    positive.push_back(kInfinite);
    std::vector<double> all;
    for (auto limit = positive.rbegin(); limit != positive.rend(); ++limit) all.push_back(-*limit);
    all.push_back(0);
    all.insert(all.end(), positive.begin(), positive.end());
    return all;
  }();
  return limits;
}

}  // namespace

Histogram make_histogram(std::span<const double> values) {
  const std::vector<double>& limits = bin_limits();
  std::vector<std::int64_t> counts(limits.size());
  Histogram histogram;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    const bool is_first = histogram.count++ == 0;
    histogram.least = is_first ? value : std::min(histogram.least, value);
    histogram.most = is_first ? value : std::max(histogram.most, value);
    histogram.sum += value;
    histogram.sum_of_squares += value * value;
    const auto bin = std::upper_bound(limits.begin(), limits.end() - 1, value) - limits.begin();
    ++counts[static_cast<std::size_t>(bin)];
  }
  for (std::size_t i = 0; i < limits.size(); ++i) {
    while (counts[i] == 0 && i + 1 < limits.size() && counts[i + 1] == 0) ++i;
    histogram.limits.push_back(limits[i]);
    histogram.counts.push_back(static_cast<double>(counts[i]));
  }
  return histogram;
}

}  // namespace lockstep::inline internal
