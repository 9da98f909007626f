#include "lockstep/optim/internal/shard_plan.h"

#include <algorithm>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using Owners = std::vector<std::vector<int>>;

std::vector<ShardCandidate> group_of(const std::vector<std::int64_t>& bytes) {
  std::vector<ShardCandidate> group;
  for (const std::int64_t size : bytes) group.push_back({.bytes = size});
  return group;
}

TEST(ShardPlan, NothingToPlan) {
  EXPECT_EQ(plan_shards({}, 2), Owners{});
  EXPECT_EQ(plan_shards({{}, {}}, 2), (Owners{{}, {}}));
}

TEST(ShardPlan, OneRankOwnsEverything) {
  EXPECT_EQ(plan_shards({group_of({3, 0, 5}), group_of({1})}, 1), (Owners{{0, 0, 0}, {0}}));
}

TEST(ShardPlan, TheLargestFirstToTheRankWithTheLeast) {
  EXPECT_EQ(plan_shards({group_of({1, 9, 4, 5, 3})}, 2), (Owners{{1, 0, 1, 1, 0}}));
  EXPECT_EQ(plan_shards({group_of({7, 7, 7})}, 3), (Owners{{0, 1, 2}}));
}

TEST(ShardPlan, ARankMayGetNothing) {
  EXPECT_EQ(plan_shards({group_of({4})}, 3), (Owners{{0}}));
}

TEST(ShardPlan, LaterGroupsFillWhatEarlierOnesLeft) {
  EXPECT_EQ(plan_shards({group_of({9, 4}), group_of({3, 1})}, 2), (Owners{{0, 1}, {1, 1}}));
}

TEST(ShardPlan, AnAddedGroupMovesNothing) {
  const auto first = group_of({5, 2, 8, 1});
  const Owners before = plan_shards({first}, 3);
  const Owners after = plan_shards({first, group_of({100, 1})}, 3);
  EXPECT_EQ(after[0], before[0]);
}

TEST(ShardPlan, FrozenParametersComeAfterTheOthers) {
  std::vector<ShardCandidate> group = group_of({100, 4, 4});
  group[0].is_frozen = true;
  EXPECT_EQ(plan_shards({group}, 2), (Owners{{0, 0, 1}}));
}

TEST(ShardPlan, NoRankIsMoreThanOneParameterAboveTheMean) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 200; ++trial) {
    const int world_size = 1 + static_cast<int>(random() % 6);
    std::vector<std::vector<ShardCandidate>> groups(random() % 4);
    for (auto& group : groups) {
      std::vector<std::int64_t> bytes(random() % 20);
      for (std::int64_t& size : bytes) size = static_cast<std::int64_t>(random() % 1000);
      group = group_of(bytes);
    }
    const Owners owners = plan_shards(groups, world_size);
    ASSERT_EQ(owners.size(), groups.size());
    std::vector<std::int64_t> bytes_of_rank(static_cast<std::size_t>(world_size), 0);
    std::int64_t largest = 0;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      ASSERT_EQ(owners[g].size(), groups[g].size());
      for (std::size_t i = 0; i < groups[g].size(); ++i) {
        ASSERT_GE(owners[g][i], 0);
        ASSERT_LT(owners[g][i], world_size);
        bytes_of_rank[static_cast<std::size_t>(owners[g][i])] += groups[g][i].bytes;
        largest = std::max(largest, groups[g][i].bytes);
      }
    }
    const auto total = std::accumulate(bytes_of_rank.begin(), bytes_of_rank.end(), std::int64_t{0});
    EXPECT_LE(*std::max_element(bytes_of_rank.begin(), bytes_of_rank.end()),
              total / world_size + largest);
  }
}

}  // namespace
}  // namespace lockstep
