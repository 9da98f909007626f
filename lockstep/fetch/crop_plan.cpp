#include "lockstep/fetch/crop_plan.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>

#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

/// The R2 sequence (Roberts, 2018), in 32-bit fixed point: steps of 1/g and 1/g² modulo 1, where
/// g = 1.3247… solves g³ = g + 1, cover a square more evenly than random points.
constexpr std::uint32_t kStepX = 0xc13fa9a9;
constexpr std::uint32_t kStepY = 0x91e10da6;

std::size_t scaled(std::uint32_t fraction, std::size_t count) {
  return static_cast<std::size_t>((std::uint64_t{fraction} * count) >> 32);
}

// Squares whose corner is one of `columns` by `rows` positions from (first_x, 0).
std::vector<CropPosition> spread(std::size_t first_x, std::size_t columns, std::size_t rows,
                                 std::size_t most) {
  const std::size_t count = std::min(most, columns * rows);
  // Positions repeat sooner or later: all are tried this often before a few are left out.
  const std::size_t tries = 8 * count;
  std::set<std::pair<std::size_t, std::size_t>> seen;
  std::vector<CropPosition> positions;
  std::uint32_t fraction_x = 0;
  std::uint32_t fraction_y = 0;
  for (std::size_t i = 0; i < tries && positions.size() < count; ++i) {
    fraction_x += kStepX;
    fraction_y += kStepY;
    const CropPosition position{first_x + scaled(fraction_x, columns), scaled(fraction_y, rows)};
    if (seen.emplace(position.x, position.y).second) positions.push_back(position);
  }
  return positions;
}

}  // namespace

CropPlan plan_crops(std::size_t width, std::size_t height, std::size_t side, std::size_t most_train,
                    std::size_t most_test) {
  const std::size_t train_width = width * 3 / 4;
  const std::size_t test_width = width - train_width;
  if (side == 0 || height < side || train_width < side || test_width < side) {
    throw UsageError(concat("cropping an image of ", width, " by ", height,
                            " pixels: a quarter of "
                            "its width or its height has less than ",
                            side, "; use a larger one"));
  }
  const std::size_t rows = height - side + 1;
  return {.train = spread(0, train_width - side + 1, rows, most_train),
          .test = spread(train_width, test_width - side + 1, rows, most_test)};
}

}  // namespace lockstep
