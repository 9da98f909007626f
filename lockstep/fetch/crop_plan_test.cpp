#include "lockstep/fetch/crop_plan.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

std::size_t distinct(const std::vector<CropPosition>& positions) {
  std::set<std::pair<std::size_t, std::size_t>> seen;
  for (const CropPosition& position : positions) seen.emplace(position.x, position.y);
  return seen.size();
}

TEST(CropPlan, KeepsTrainingAndTestApartAndWithinTheImage) {
  for (const std::size_t width : {128U, 129U, 451U, 512U}) {
    for (const std::size_t height : {32U, 33U, 300U}) {
      const CropPlan plan = plan_crops(width, height, 32, 50, 20);
      const std::size_t boundary = width * 3 / 4;
      for (const CropPosition& position : plan.train) {
        EXPECT_LE(position.x + 32, boundary);
        EXPECT_LE(position.y + 32, height);
      }
      for (const CropPosition& position : plan.test) {
        EXPECT_GE(position.x, boundary);
        EXPECT_LE(position.x + 32, width);
        EXPECT_LE(position.y + 32, height);
      }
      EXPECT_EQ(distinct(plan.train), plan.train.size());
      EXPECT_EQ(distinct(plan.test), plan.test.size());
    }
  }
}

TEST(CropPlan, GivesAsManyAsAskedForWhereThereIsRoom) {
  const CropPlan plan = plan_crops(512, 512, 32, 1000, 250);
  EXPECT_EQ(plan.train.size(), 1000U);
  EXPECT_EQ(plan.test.size(), 250U);
  EXPECT_EQ(plan_crops(512, 512, 32, 1, 1).test.size(), 1U);
  // One row of 65 and of 1 positions.
  const CropPlan small = plan_crops(128, 32, 32, 1000, 1000);
  EXPECT_EQ(small.train.size(), 65U);
  EXPECT_EQ(small.test.size(), 1U);
}

TEST(CropPlan, CoversEachPartEvenly) {
  const CropPlan plan = plan_crops(640, 480, 32, 1000, 250);
  // A tenth of the training columns and rows at each end.
  const auto count = [&](auto&& inside) {
    return std::count_if(plan.train.begin(), plan.train.end(), inside);
  };
  EXPECT_NEAR(count([](const CropPosition& at) { return at.x < 45; }), 100, 10);
  EXPECT_NEAR(count([](const CropPosition& at) { return at.x >= 404; }), 100, 10);
  EXPECT_NEAR(count([](const CropPosition& at) { return at.y < 45; }), 100, 10);
}

TEST(CropPlan, IsTheSameEverywhere) {
  const CropPlan plan = plan_crops(512, 512, 32, 2, 1);
  EXPECT_EQ(plan.train, (std::vector<CropPosition>{{266, 274}, {179, 67}}));
  EXPECT_EQ(plan.test, (std::vector<CropPosition>{{457, 274}}));
}

TEST(CropPlan, RefusesImagesThatAreTooSmall) {
  EXPECT_THROW(plan_crops(124, 124, 32, 1, 1), UsageError) << "no test square";
  EXPECT_THROW(plan_crops(1000, 31, 32, 1, 1), UsageError);
  EXPECT_THROW(plan_crops(0, 0, 32, 1, 1), UsageError);
}

}  // namespace
}  // namespace lockstep
