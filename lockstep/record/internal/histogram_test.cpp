#include <limits>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/record/internal/event.h"

namespace lockstep {
namespace {

TEST(Histogram, CountsEachValueBelowItsLimit) {
  std::vector<double> values;
  for (int i = -50; i <= 50; ++i) values.push_back(0.37 * i);
  const Histogram histogram = make_histogram(values);
  EXPECT_EQ(histogram.count, 101);
  EXPECT_DOUBLE_EQ(histogram.least, -18.5);
  EXPECT_DOUBLE_EQ(histogram.most, 18.5);
  EXPECT_NEAR(histogram.sum, 0, 1e-9);
  EXPECT_NEAR(histogram.sum_of_squares, 2 * 0.37 * 0.37 * 50 * 51 * 101 / 6.0, 1e-6);
  ASSERT_EQ(histogram.limits.size(), histogram.counts.size());
  double below = -std::numeric_limits<double>::max();
  for (std::size_t i = 0; i < histogram.limits.size(); ++i) {
    const double limit = histogram.limits[i];
    double expected = 0;
    for (const double value : values) expected += below <= value && value < limit ? 1 : 0;
    EXPECT_EQ(histogram.counts[i], expected) << below << " to " << limit;
    below = limit;
  }
}

TEST(Histogram, LeavesOutWhatIsNoNumber) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Histogram histogram = make_histogram(std::vector<double>{
      std::numeric_limits<double>::quiet_NaN(), 1e300, kInfinity, -1e300, -kInfinity});
  EXPECT_EQ(histogram.count, 2);
  EXPECT_EQ(std::accumulate(histogram.counts.begin(), histogram.counts.end(), 0.0), 2);
  EXPECT_EQ(make_histogram({}).count, 0);
  EXPECT_EQ(make_histogram({}).limits.size(), 1U);
  EXPECT_EQ(make_histogram(std::vector<double>{0, 0}).count, 2);
}

}  // namespace
}  // namespace lockstep
