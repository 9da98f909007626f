#include "lockstep/nn/internal/channel_statistics.h"

#include <bit>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

std::vector<double> channel_values(int count, double offset) {
  std::vector<double> values;
  for (int i = 0; i < count; ++i) values.push_back(offset + std::sin(i * 1.7) * (1 + i % 3));
  return values;
}

ChannelStatistics statistics_of(const std::vector<double>& values) {
  ChannelStatistics result{.count = static_cast<double>(values.size())};
  if (values.empty()) return result;
  for (const double value : values) result.mean += value / result.count;
  for (const double value : values) {
    result.squares += (value - result.mean) * (value - result.mean);
  }
  return result;
}

TEST(ChannelStatistics, OfPartsAreThoseOfTheWholeWhereverItIsCut) {
  for (const double offset : {0.0, -3.0, 1e6}) {
    for (const int size : {0, 1, 2, 7, 23}) {
      const std::vector<double> whole = channel_values(size, offset);
      const ChannelStatistics expected = statistics_of(whole);
      for (int first = 0; first <= size; ++first) {
        for (int second = first; second <= size; ++second) {
          const auto part = [&](int begin, int end) {
            return statistics_of({whole.begin() + begin, whole.begin() + end});
          };
          const ChannelStatistics combined =
              combine(combine(part(0, first), part(first, second)), part(second, size));
          EXPECT_EQ(combined.count, size);
          EXPECT_NEAR(combined.mean, expected.mean, 1e-12 * (1 + std::abs(offset)));
          EXPECT_NEAR(combined.squares, expected.squares, 1e-9 * (1 + expected.squares));
        }
      }
    }
  }
}

// The definition: halves of the smallest power of two that holds all parts.
ChannelStatistics by_halves(const std::vector<ChannelStatistics>& parts, std::size_t begin,
                            std::size_t size) {
  if (size == 1) return parts[begin];
  const ChannelStatistics left = by_halves(parts, begin, size / 2);
  if (begin + size / 2 >= parts.size()) return left;
  return combine(left, by_halves(parts, begin + size / 2, size / 2));
}

TEST(ChannelStatistics, OfManyPartsAreCombinedAlongTheTree) {
  for (std::size_t count = 1; count <= 17; ++count) {
    std::vector<ChannelStatistics> parts;
    for (std::size_t i = 0; i < count; ++i) {
      parts.push_back(
          statistics_of(channel_values(static_cast<int>(i % 4 + 1), std::cos(i * 3.1))));
    }
    const ChannelStatistics expected = by_halves(parts, 0, std::bit_ceil(count));
    const ChannelStatistics combined = combine_by_tree(parts);
    EXPECT_EQ(combined.count, expected.count);
    EXPECT_EQ(combined.mean, expected.mean) << count;
    EXPECT_EQ(combined.squares, expected.squares) << count;
  }
}

TEST(ChannelStatistics, OfAnEmptyPartChangeNoBit) {
  const ChannelStatistics some{.count = 3, .mean = 0.1, .squares = 0.7};
  for (const ChannelStatistics& same : {combine(some, {}), combine({}, some)}) {
    EXPECT_EQ(same.count, some.count);
    EXPECT_EQ(same.mean, some.mean);
    EXPECT_EQ(same.squares, some.squares);
  }
}

}  // namespace
}  // namespace lockstep
