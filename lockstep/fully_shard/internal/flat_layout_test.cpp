#include "lockstep/fully_shard/internal/flat_layout.h"

#include <numeric>
#include <random>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using Elements = std::vector<std::int64_t>;

const Elements kModels[] = {{},           {0},        {1},           {7},
                            {0, 0},       {1, 0, 1},  {16, 16},      {13, 1009, 2},
                            {1, 1, 1, 1}, {64, 0, 3}, {300'007, 31}, {5, 17, 0, 2, 1'000'003}};

// Counts, for each element of each parameter, the ranks that hold it.
void expect_each_element_on_one_rank(const FlatLayout& layout, const Elements& elements) {
  for (std::size_t i = 0; i < elements.size(); ++i) {
    std::int64_t next = 0;
    for (int rank = 0; rank < layout.world_size; ++rank) {
      const ElementRange held = layout.piece(rank, i);
      if (held.size() == 0) continue;
      ASSERT_EQ(held.begin, next) << "parameter " << i << " on rank " << rank;
      next = held.end;
      const std::int64_t place = layout.place_in_chunk(rank, i);
      ASSERT_GE(place, 0);
      ASSERT_LE(place + held.size(), layout.chunk);
      ASSERT_EQ(rank * layout.chunk + place, layout.parameters[i].begin + held.begin);
    }
    ASSERT_EQ(next, elements[i]) << "parameter " << i;
  }
}

void expect_aligned_and_disjoint(const FlatLayout& layout, const Elements& elements,
                                 std::int64_t alignment) {
  EXPECT_EQ(layout.chunk % alignment, 0);
  std::int64_t end = 0;
  for (std::size_t i = 0; i < elements.size(); ++i) {
    EXPECT_EQ(layout.parameters[i].begin % alignment, 0);
    EXPECT_GE(layout.parameters[i].begin, end);
    EXPECT_EQ(layout.parameters[i].size(), elements[i]);
    end = layout.parameters[i].end;
  }
  EXPECT_LE(end, layout.total());
}

// Parameters and padding together are the flat tensor, each element once.
void expect_padding_fills_up(const FlatLayout& layout) {
  std::vector<ElementRange> all = layout.padding();
  std::int64_t sum = 0;
  for (const ElementRange& gap : all) {
    EXPECT_GT(gap.size(), 0);
    for (const ElementRange& parameter : layout.parameters) {
      EXPECT_TRUE(gap.end <= parameter.begin || gap.begin >= parameter.end);
    }
    sum += gap.size();
  }
  for (const ElementRange& parameter : layout.parameters) sum += parameter.size();
  EXPECT_EQ(sum, layout.total());
}

void expect_sound(const Elements& elements, int world_size, std::int64_t alignment) {
  SCOPED_TRACE(::testing::Message() << ::testing::PrintToString(elements) << " on " << world_size
                                    << " ranks, alignment " << alignment);
  const FlatLayout layout = plan_flat_layout(elements, world_size, alignment);
  expect_each_element_on_one_rank(layout, elements);
  expect_aligned_and_disjoint(layout, elements, alignment);
  expect_padding_fills_up(layout);
  // No rank holds more than its share, the gaps between parameters and its own rounding.
  const std::int64_t sum = std::accumulate(elements.begin(), elements.end(), std::int64_t{0});
  const auto parameters = static_cast<std::int64_t>(elements.size());
  EXPECT_LE(layout.chunk, (sum + parameters * (alignment - 1)) / world_size + 1 + alignment);
}

TEST(FlatLayout, HoldsEachElementOnOneRank) {
  for (const Elements& elements : kModels) {
    for (int world_size = 1; world_size <= 8; ++world_size) {
      for (const std::int64_t alignment : {1, 8, 16, 64}) {
        expect_sound(elements, world_size, alignment);
      }
    }
  }
}

TEST(FlatLayout, HoldsEachElementOnOneRankOfRandomModels) {
  std::mt19937 random(28);
  for (int round = 0; round < 500; ++round) {
    Elements elements(random() % 9);
    for (std::int64_t& count : elements) count = random() % 3 == 0 ? random() % 4 : random() % 999;
    expect_sound(elements, 1 + static_cast<int>(random() % 8), std::int64_t{1} << (random() % 7));
  }
}

TEST(FlatLayout, LaysParametersOutInOrder) {
  const FlatLayout layout = plan_flat_layout({5, 3, 0, 9}, 2, 4);
  EXPECT_EQ(layout.parameters, (std::vector<ElementRange>{{0, 5}, {8, 11}, {12, 12}, {12, 21}}));
  EXPECT_EQ(layout.chunk, 12);
  EXPECT_EQ(layout.piece(0, 1), (ElementRange{0, 3}));
  EXPECT_EQ(layout.piece(1, 1), ElementRange{});
  EXPECT_EQ(layout.piece(1, 3), (ElementRange{0, 9}));
  EXPECT_EQ(layout.padding(), (std::vector<ElementRange>{{5, 8}, {11, 12}, {21, 24}}));
}

TEST(FlatLayout, FindsTheParameterOfAnElement) {
  const FlatLayout layout = plan_flat_layout({5, 3, 9}, 2, 4);
  EXPECT_EQ(layout.parameter_at(0), 0U);
  EXPECT_EQ(layout.parameter_at(4), 0U);
  EXPECT_EQ(layout.parameter_at(8), 1U);
  EXPECT_EQ(layout.parameter_at(20), 2U);
  EXPECT_EQ(layout.parameter_at(23), 2U);
}

}  // namespace
}  // namespace lockstep
