#include "lockstep/snapshot/checkpoint/tensor_box.h"

#include <random>

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using Dims = std::vector<std::int64_t>;

at::Tensor part_of(const at::Tensor& tensor, const TensorBox& box) {
  at::Tensor part = tensor;
  for (std::size_t i = 0; i < box.begin.size(); ++i) {
    part = part.narrow(static_cast<std::int64_t>(i), box.begin[i], box.sizes[i]);
  }
  return part;
}

/// Each element counted.
bool tile_by_counting(const std::vector<TensorBox>& boxes, const Dims& shape) {
  const at::Tensor counts = at::zeros(shape, at::kInt);
  for (const TensorBox& box : boxes) part_of(counts, box).add_(1);
  return counts.eq(1).all().item<bool>();
}

TEST(TensorBox, BoxesTileAShapeIfEachElementIsInOne) {
  std::mt19937 random(1);
  const auto below = [&](std::int64_t end) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(end));
  };
  int tiled = 0;
  for (int round = 0; round < 3000; ++round) {
    Dims shape;
    for (std::int64_t i = below(4); i > 0; --i) shape.push_back(below(4));
    // Halved at random, and then perhaps one box is moved, dropped or doubled.
    std::vector<TensorBox> boxes{whole_box(shape)};
    for (std::int64_t cuts = below(5); cuts > 0 && !shape.empty(); --cuts) {
      TensorBox& box =
          boxes[static_cast<std::size_t>(below(static_cast<std::int64_t>(boxes.size())))];
      const auto at = static_cast<std::size_t>(below(static_cast<std::int64_t>(shape.size())));
      const std::int64_t first = below(box.sizes[at] + 1);
      TensorBox second = box;
      second.begin[at] += first;
      second.sizes[at] -= first;
      box.sizes[at] = first;
      boxes.push_back(second);
    }
    // The last one: the first begins at 0, and cannot be moved towards it.
    TensorBox& changed = boxes.back();
    switch (below(4)) {
      case 0:
        boxes.push_back(changed);
        break;
      case 1:
        boxes.pop_back();
        break;
      case 2:
        for (std::int64_t& begin : changed.begin) begin = std::max<std::int64_t>(0, begin - 1);
        break;
      default:
        break;
    }
    const bool expected = tile_by_counting(boxes, shape);
    tiled += expected ? 1 : 0;
    EXPECT_EQ(tile_the_shape(boxes, shape), expected) << "round " << round;
  }
  EXPECT_GT(tiled, 500);
  EXPECT_LT(tiled, 2500);
}

// All share their rows.
TEST(TensorBox, ManyBoxesAreCheckedInLittleTime) {
  constexpr std::int64_t kColumns = 200'000;
  const Dims shape{2, kColumns + 1, 1};
  std::vector<TensorBox> boxes;
  for (std::int64_t i = 0; i < kColumns; ++i) boxes.push_back({{0, i, 0}, {2, 1, 1}});
  EXPECT_FALSE(tile_the_shape(boxes, shape));
  boxes.push_back({{0, kColumns - 1, 0}, {2, 1, 1}});
  EXPECT_FALSE(tile_the_shape(boxes, shape)) << "one twice, and another is missing";
  ++boxes.back().begin[1];
  EXPECT_TRUE(tile_the_shape(boxes, shape));
  // As many elements, in halves that do not meet.
  boxes.back() = {{0, kColumns, 0}, {1, 1, 1}};
  boxes.push_back(boxes.back());
  EXPECT_FALSE(tile_the_shape(boxes, shape));
  ++boxes.back().begin[0];
  EXPECT_TRUE(tile_the_shape(boxes, shape));
}

// No cut through the whole shape divides them.
TEST(TensorBox, BoxesAroundAnotherTileAShape) {
  std::vector<TensorBox> boxes{
      {{0, 0}, {1, 2}}, {{0, 2}, {2, 1}}, {{2, 1}, {1, 2}}, {{1, 0}, {2, 1}}, {{1, 1}, {1, 1}}};
  EXPECT_TRUE(tile_the_shape(boxes, {3, 3}));
  boxes.back().begin = {0, 0};
  EXPECT_FALSE(tile_the_shape(boxes, {3, 3}));
}

// Row 0 and column 1: they would tile it if rows were columns.
TEST(TensorBox, BoxesOfOtherDimensionsTileNoShape) {
  EXPECT_FALSE(tile_the_shape({{{0, 0}, {1, 2}}, {{0, 1}, {2, 1}}}, {2, 2}));
  EXPECT_FALSE(tile_the_shape({{{0, 0}, {2, 1}}, {{1, 0}, {1, 2}}}, {2, 2}));
}

TEST(TensorBox, LiesWithinItsShapeWhateverTheNumbers) {
  EXPECT_TRUE(lies_within({{}, {}}, {}));
  EXPECT_TRUE(lies_within({{2, 0}, {2, 0}}, {4, 3}));
  EXPECT_TRUE(lies_within({{4, 3}, {0, 0}}, {4, 3}));
  EXPECT_FALSE(lies_within({{2, 0}, {3, 1}}, {4, 3}));
  EXPECT_FALSE(lies_within({{-1, 0}, {1, 1}}, {4, 3}));
  EXPECT_FALSE(lies_within({{0, 0}, {-1, 1}}, {4, 3}));
  EXPECT_FALSE(lies_within({{INT64_MAX, 0}, {INT64_MAX, 1}}, {4, 3}));
  EXPECT_FALSE(lies_within({{0}, {1, 1}}, {4, 3}));
  EXPECT_FALSE(lies_within({{0, 0}, {1}}, {4, 3}));
}

TEST(TensorBox, ElementsThatDoNotFitAreNotCounted) {
  EXPECT_EQ(element_count({}), 1);
  EXPECT_EQ(element_count({3, 0, 5}), 0);
  EXPECT_EQ(element_count({3, 4, 5}), 60);
  EXPECT_EQ(element_count({std::int64_t{1} << 32, std::int64_t{1} << 32}), std::nullopt);
  EXPECT_EQ(element_count({std::int64_t{1} << 32, std::int64_t{1} << 32, 0}), std::nullopt);
  EXPECT_EQ(element_count({-1, 0}), std::nullopt);
}

TEST(TensorBox, RowsOfAllPartsTileTheShape) {
  for (const Dims& shape : {Dims{}, {1}, {7}, {7, 3}, {2, 5, 1}, {0, 3}, {3, 0}}) {
    for (std::int64_t parts = 1; parts <= 9; ++parts) {
      std::vector<TensorBox> boxes;
      for (std::int64_t i = 0; i < parts; ++i) {
        if (const auto box = rows_of_part(shape, parts, i)) boxes.push_back(*box);
      }
      EXPECT_FALSE(boxes.empty());
      EXPECT_TRUE(tile_by_counting(boxes, shape));
      EXPECT_LE(boxes.size(), shape.empty() ? 1 : std::max<std::size_t>(1, shape[0]));
    }
  }
}

TEST(TensorBox, BlocksAreWholeRowsOfAtMostSoManyBytes) {
  const TensorBox box{{2, 0}, {7, 5}};
  for (const std::int64_t most : {1, 20, 39, 40, 100, 1000}) {
    std::int64_t row = 2;
    for (const TensorBox& block : row_blocks(box, 4, most)) {
      EXPECT_EQ(block.begin, (Dims{row, 0}));
      EXPECT_TRUE(block.sizes[0] == 1 || block.sizes[0] * 20 <= most);
      row += block.sizes[0];
    }
    EXPECT_EQ(row, 9);
  }
  EXPECT_EQ(row_blocks(whole_box({}), 4, 1).size(), 1u);
  EXPECT_EQ(row_blocks(whole_box({0, 3}), 4, 1).size(), 1u);
}

}  // namespace
}  // namespace lockstep
