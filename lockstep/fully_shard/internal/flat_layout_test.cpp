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

// The parts of a range are the range, each element once, and the parameter's that it belongs to.
void expect_parts_of(const FlatLayout& layout, ElementRange range) {
  std::int64_t next = range.begin;
  for (const FlatPart& part : layout.parts_of(range)) {
    ASSERT_EQ(part.elements.begin, next);
    ASSERT_GT(part.elements.size(), 0);
    next = part.elements.end;
    for (std::size_t i = 0; i < layout.parameters.size(); ++i) {
      const ElementRange& parameter = layout.parameters[i];
      const bool is_within = part.elements.begin >= parameter.begin && next <= parameter.end;
      const bool is_apart = part.elements.begin >= parameter.end || next <= parameter.begin;
      ASSERT_TRUE(part.parameter == i ? is_within : is_apart) << "parameter " << i;
    }
  }
  ASSERT_EQ(next, range.end);
}

void expect_parts_fill_windows(const FlatLayout& layout) {
  expect_parts_of(layout, {0, layout.total()});
  for (const std::int64_t window : {1, 7, 64}) {
    if (layout.total() / window > 100) continue;
    for (std::int64_t begin = 0; begin < layout.total(); begin += window) {
      expect_parts_of(layout, {begin, std::min(begin + window, layout.total())});
    }
  }
}

void expect_sound(const Elements& elements, int world_size, std::int64_t alignment) {
  SCOPED_TRACE(::testing::Message() << ::testing::PrintToString(elements) << " on " << world_size
                                    << " ranks, alignment " << alignment);
  const FlatLayout layout = plan_flat_layout(elements, world_size, alignment);
  expect_each_element_on_one_rank(layout, elements);
  expect_aligned_and_disjoint(layout, elements, alignment);
  expect_parts_fill_windows(layout);
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
  EXPECT_EQ(layout.parts_of({2, 11}),
            (std::vector<FlatPart>{{0, {2, 5}}, {std::nullopt, {5, 8}}, {1, {8, 11}}}));
  EXPECT_EQ(layout.parts_of({11, 24}),
            (std::vector<FlatPart>{{std::nullopt, {11, 12}}, {3, {12, 21}}, {{}, {21, 24}}}));
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
