#include "lockstep/train/internal/exact_sum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using Sum = std::array<std::int64_t, kWordsOfExactSum>;
using Limits = std::numeric_limits<double>;

double sum_of(const std::vector<double>& terms) {
  Sum sum{};
  for (const double term : terms) add_exactly(sum, term);
  return rounded_sum(sum);
}

TEST(ExactSum, OfOneTermIsThatTerm) {
  for (const double term : {0.0, 1.0, -1.0, 0.1, -1e300, Limits::max(), Limits::lowest(),
                            Limits::min(), Limits::denorm_min(), -Limits::denorm_min(),
                            3 * Limits::denorm_min(), 0x1.8p31, 0x1p32, -0x1.fffffffffffffp63}) {
    EXPECT_EQ(sum_of({term}), term);
  }
}

TEST(ExactSum, LosesNothing) {
  EXPECT_EQ(sum_of({1e300, 1, -1e300}), 1);
  EXPECT_EQ(sum_of({-1e300, Limits::denorm_min(), 1e300}), Limits::denorm_min());
  EXPECT_EQ(sum_of({Limits::max(), Limits::max(), Limits::lowest()}), Limits::max());
  EXPECT_EQ(sum_of({0.1, -0.1}), 0);
  EXPECT_EQ(sum_of(std::vector<double>(1000, -0x1p-40)), -1000 * 0x1p-40);
}

TEST(ExactSum, IsTheNearestDouble) {
  EXPECT_EQ(sum_of({1, 0x1p-53}), 1);  // Half way: to even.
  EXPECT_EQ(sum_of({1, 0x1p-53, 0x1p-500}), 1 + Limits::epsilon());
  EXPECT_EQ(sum_of({1 + Limits::epsilon(), 0x1p-53}), 1 + 2 * Limits::epsilon());
  EXPECT_EQ(sum_of({-1, -0x1p-53, -0x1p-1074}), -1 - Limits::epsilon());
  EXPECT_EQ(sum_of({Limits::max(), Limits::max()}), Limits::infinity());
}

TEST(ExactSum, OfWhatIsNotFinite) {
  EXPECT_EQ(sum_of({1, Limits::infinity()}), Limits::infinity());
  EXPECT_EQ(sum_of({-Limits::infinity(), 1, -Limits::infinity()}), -Limits::infinity());
  EXPECT_TRUE(std::isnan(sum_of({Limits::infinity(), -Limits::infinity()})));
  EXPECT_TRUE(std::isnan(sum_of({1, Limits::quiet_NaN()})));
}

// The oracle: 128-bit integers. Terms of 40 exponents, many signs, any order, any division.
TEST(ExactSum, IsThatOfIntegersInAnyOrderAndAnyDivision) {
  std::mt19937_64 random(1);  // NOLINT(cert-msc32-c,cert-msc51-cpp): the same numbers each time
  for (int round = 0; round < 300; ++round) {
    std::vector<double> terms;
    __int128 exact = 0;
    for (std::uint64_t count = random() % 50; terms.size() < count;) {
      const auto mantissa = static_cast<std::int64_t>(random() >> 12U) - (std::int64_t{1} << 51);
      const auto exponent = static_cast<int>(random() % 40);
      terms.push_back(std::ldexp(static_cast<double>(mantissa), exponent));
      exact += static_cast<__int128>(mantissa) << exponent;
    }
    const auto expected = static_cast<double>(exact);
    EXPECT_EQ(sum_of(terms), expected);
    std::ranges::shuffle(terms, random);
    Sum parts[3] = {};
    for (const double term : terms) add_exactly(parts[random() % 3], term);
    Sum all{};
    for (const Sum& part : parts) {
      for (std::size_t i = 0; i < all.size(); ++i) all.at(i) += part.at(i);
    }
    EXPECT_EQ(rounded_sum(all), expected);
  }
}

}  // namespace
}  // namespace lockstep
