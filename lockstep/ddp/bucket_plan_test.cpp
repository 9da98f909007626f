#include "lockstep/ddp/bucket_plan.h"

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
  EXPECT_TRUE(plan_buckets({}, {}, {.first_bytes = 1, .bytes = 1}).empty());
}

TEST(BucketPlan, TheGradientThatReachesTheCapClosesTheBucket) {
  const auto shapes = shapes_of({4, 4, 4, 4, 4});
  EXPECT_EQ(plan_buckets(shapes, in_order(5), {.first_bytes = 4, .bytes = 8}),
            (Buckets{{0}, {1, 2}, {3, 4}}));
  EXPECT_EQ(plan_buckets(shapes, in_order(5), {.first_bytes = 5, .bytes = 9}),
            (Buckets{{0, 1}, {2, 3, 4}}));
}

TEST(BucketPlan, AGradientLargerThanTheCapEndsItsBucket) {
  EXPECT_EQ(plan_buckets(shapes_of({1, 100, 1}), in_order(3), {.first_bytes = 10, .bytes = 10}),
            (Buckets{{0, 1}, {2}}));
}

TEST(BucketPlan, AGradientThatStandsAloneClosesNoOther) {
  std::vector<GradientShape> shapes = shapes_of({4, 100, 4, 4});
  shapes[1].alone = true;
  EXPECT_EQ(plan_buckets(shapes, in_order(4), {.first_bytes = 8, .bytes = 8}),
            (Buckets{{1}, {0, 2}, {3}}));
}

TEST(BucketPlan, FollowsTheOrderOfReadiness) {
  EXPECT_EQ(plan_buckets(shapes_of({4, 4, 4}), {2, 0, 1}, {.first_bytes = 4, .bytes = 8}),
            (Buckets{{2}, {0, 1}}));
}

TEST(BucketPlan, KindsDoNotMixAndCompleteBucketsComeFirst) {
  std::vector<GradientShape> shapes = shapes_of({4, 4, 4, 4});
  shapes[0].kind = 1;
  shapes[3].kind = 1;
  EXPECT_EQ(plan_buckets(shapes, in_order(4), {.first_bytes = 64, .bytes = 64}),
            (Buckets{{1, 2}, {0, 3}}));
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
    const BucketCaps caps{.first_bytes = static_cast<std::int64_t>(random() % 40),
                          .bytes = static_cast<std::int64_t>(random() % 100)};
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
        ASSERT_LT(before_last, std::max(caps.bytes, caps.first_bytes));
      }
    }
    std::sort(seen.begin(), seen.end());
    ASSERT_EQ(seen, in_order(count));
  }
}

}  // namespace
}  // namespace lockstep
