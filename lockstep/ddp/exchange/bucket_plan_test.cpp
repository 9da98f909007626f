#include "lockstep/ddp/exchange/bucket_plan.h"

#include <algorithm>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using Buckets = std::vector<Bucket>;

std::vector<GradientShape> shapes_of(const std::vector<std::int64_t>& bytes) {
  std::vector<GradientShape> shapes;
  for (const auto size : bytes) shapes.push_back({.bytes = size});
  return shapes;
}

std::vector<std::size_t> in_order(std::size_t count) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

TEST(BucketPlan, NothingToPlan) {
  EXPECT_TRUE(plan_buckets({}, {}, {1, 1}).empty());
}

TEST(BucketPlan, TheGradientThatReachesTheCapClosesTheBucket) {
  const auto shapes = shapes_of({4, 4, 4, 4, 4});
  EXPECT_EQ(plan_buckets(shapes, in_order(5), {4, 8}), (Buckets{{0}, {1, 2}, {3, 4}}));
  EXPECT_EQ(plan_buckets(shapes, in_order(5), {5, 9}), (Buckets{{0, 1}, {2, 3, 4}}));
}

TEST(BucketPlan, TheLastCapHoldsForAllAfterIt) {
  EXPECT_EQ(plan_buckets(shapes_of({1, 1, 1, 1, 1, 1, 1}), in_order(7), {1, 2, 3}),
            (Buckets{{0}, {1, 2}, {3, 4, 5}, {6}}));
  EXPECT_EQ(plan_buckets(shapes_of({1, 1, 1, 1}), in_order(4), {2}), (Buckets{{0, 1}, {2, 3}}));
}

TEST(BucketPlan, WhatIsNotInTheOrderGetsNoBucket) {
  EXPECT_EQ(plan_buckets(shapes_of({4, 4, 4}), {2, 0}, {4}), (Buckets{{2}, {0}}));
}

TEST(BucketPlan, AGradientLargerThanTheCapEndsItsBucket) {
  EXPECT_EQ(plan_buckets(shapes_of({1, 100, 1}), in_order(3), {10, 10}), (Buckets{{0, 1}, {2}}));
}

TEST(BucketPlan, AGradientThatStandsAloneClosesNoOther) {
  std::vector<GradientShape> shapes = shapes_of({4, 100, 4, 4});
  shapes[1].alone = true;
  EXPECT_EQ(plan_buckets(shapes, in_order(4), {8, 8}), (Buckets{{1}, {0, 2}, {3}}));
}

TEST(BucketPlan, FollowsTheOrderOfReadiness) {
  EXPECT_EQ(plan_buckets(shapes_of({4, 4, 4}), {2, 0, 1}, {4, 8}), (Buckets{{2}, {0, 1}}));
}

TEST(BucketPlan, KindsDoNotMixAndCompleteBucketsComeFirst) {
  std::vector<GradientShape> shapes = shapes_of({4, 4, 4, 4});
  shapes[0].kind = 1;
  shapes[3].kind = 1;
  EXPECT_EQ(plan_buckets(shapes, in_order(4), {64, 64}), (Buckets{{1, 2}, {0, 3}}));
}

TEST(BucketPlan, EveryGradientIsInOneBucketWhateverTheSizes) {
  std::mt19937 random(20261121);
  for (int round = 0; round < 200; ++round) {
    const std::size_t count = random() % 40;
    std::vector<GradientShape> shapes;
    for (std::size_t i = 0; i < count; ++i) {
      shapes.push_back({.bytes = static_cast<std::int64_t>(random() % 50),
                        .kind = static_cast<int>(random() % 3)});
    }
    auto order = in_order(count);
    std::shuffle(order.begin(), order.end(), random);
    const BucketCaps caps{static_cast<std::int64_t>(random() % 40),
                          static_cast<std::int64_t>(random() % 100)};
    std::vector<std::size_t> seen;
    for (const Bucket& bucket : plan_buckets(shapes, order, caps)) {
      ASSERT_FALSE(bucket.empty());
      std::int64_t before_last = 0;
      for (std::size_t i = 0; i < bucket.size(); ++i) {
        ASSERT_EQ(shapes[bucket[i]].kind, shapes[bucket[0]].kind);
        if (i + 1 < bucket.size()) before_last += shapes[bucket[i]].bytes;
        seen.push_back(bucket[i]);
      }
      if (bucket.size() > 1) {
        ASSERT_LT(before_last, std::max(caps[0], caps[1]));
      }
    }
    std::sort(seen.begin(), seen.end());
    ASSERT_EQ(seen, in_order(count));
  }
}

}  // namespace
}  // namespace lockstep
