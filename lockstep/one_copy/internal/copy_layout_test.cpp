#include "lockstep/one_copy/internal/copy_layout.h"

#include <algorithm>
#include <random>
#include <utility>

#include <gtest/gtest.h>

#include "lockstep/base/internal/concat.h"

namespace lockstep {
namespace {

using Item = CopyLayout::Item;
using Part = CopyLayout::Part;
constexpr std::int64_t kBlock = CopyLayout::kBlockElements;

std::int64_t blocks_in(const Part& part) {
  return (part.size() + kBlock - 1) / kBlock;
}

// All that the rest of the code relies on.
void check(const std::vector<Item>& items, int ranks) {
  SCOPED_TRACE(concat(items.size(), " items, ", ranks, " ranks"));
  const CopyLayout layout(items, ranks);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> taken;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto take = [&](std::uint64_t begin, std::int64_t element_bytes) {
      EXPECT_EQ(begin % 64, 0u);
      taken.emplace_back(begin,
                         begin + static_cast<std::uint64_t>(items[i].elements * element_bytes));
    };
    take(layout.parameter(i), items[i].element_bytes);
    for (std::size_t k = 0; k < CopyLayout::kStates; ++k) {
      take(layout.state(i, k), std::max<std::int64_t>(items[i].element_bytes, 4));
    }
  }
  std::sort(taken.begin(), taken.end());
  for (std::size_t i = 0; i + 1 < taken.size(); ++i) EXPECT_LE(taken[i].second, taken[i + 1].first);
  EXPECT_TRUE(taken.empty() || taken.back().second <= layout.bytes());

  std::vector<std::int64_t> blocks(static_cast<std::size_t>(ranks));
  for (std::size_t i = 0; i < items.size(); ++i) {
    std::int64_t next = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const Part part = layout.part(i, rank);
      if (part.size() == 0) continue;
      EXPECT_EQ(part.begin, next);
      EXPECT_EQ(part.begin % kBlock, 0);
      next = part.end;
      blocks[static_cast<std::size_t>(rank)] += blocks_in(part);
    }
    EXPECT_EQ(next, items[i].elements) << i;
  }
  const auto [least, most] = std::minmax_element(blocks.begin(), blocks.end());
  EXPECT_LE(*most - *least, 1);
}

TEST(CopyLayout, CoversEveryElementOnceAndEvenly) {
  for (const int ranks : {1, 2, 3, 4, 7, 64}) {
    check({}, ranks);
    for (const std::int64_t elements : {0, 1, 63, 64, 65, 1009, 65'537, 1'000'003}) {
      check({{elements, 4}}, ranks);
      check({{elements, 2}, {3, 8}, {0, 4}, {elements, 4}}, ranks);
    }
  }
}

TEST(CopyLayout, OfAnySizes) {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    std::vector<Item> items(random() % 40);
    for (Item& item : items) {
      item = {.elements = static_cast<std::int64_t>(random() % (round % 2 == 0 ? 100 : 100'000)),
              .element_bytes = 2 << random() % 3};
    }
    check(items, 1 + static_cast<int>(random() % 9));
  }
}

TEST(CopyLayout, AShareIsOneRangeOverAllParameters) {
  const CopyLayout layout({{3 * kBlock, 4}, {kBlock, 4}, {4 * kBlock, 4}}, 2);
  EXPECT_EQ(layout.part(0, 0).size(), 3 * kBlock);
  EXPECT_EQ(layout.part(1, 0).size(), kBlock);
  EXPECT_EQ(layout.part(2, 0).size(), 0);
  EXPECT_EQ(layout.part(0, 1).size(), 0);
  EXPECT_EQ(layout.part(2, 1).size(), 4 * kBlock);
}

TEST(CopyLayout, OfModelsLargerThanMemory) {
  const std::int64_t huge = std::int64_t{1} << 40;
  const CopyLayout layout({{huge, 4}, {huge, 4}}, 64);
  EXPECT_EQ(layout.part(1, 63).end, huge);
  EXPECT_EQ(layout.part(0, 31).end, huge);
  EXPECT_GT(layout.bytes(), static_cast<std::uint64_t>(huge) * 31);
}

}  // namespace
}  // namespace lockstep
