#pragma once

#include <cstddef>
#include <vector>

namespace lockstep {

struct CropPosition {
  std::size_t x = 0;
  std::size_t y = 0;
  bool operator==(const CropPosition&) const = default;
};

struct CropPlan {
  std::vector<CropPosition> train;
  std::vector<CropPosition> test;
};

/// Where to cut squares of `side` pixels out of an image: for training all within its left three
/// quarters, for the test all within the right quarter, so that no pixel is in both. Each part is
/// covered evenly, by at most as many squares as asked for, all different. The same numbers give
/// the same plan. Errors: UsageError when not one square fits into a part.
CropPlan plan_crops(std::size_t width, std::size_t height, std::size_t side, std::size_t most_train,
                    std::size_t most_test);

}  // namespace lockstep
