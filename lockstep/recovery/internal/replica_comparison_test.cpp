#include "lockstep/recovery/internal/replica_comparison.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using Hashes = std::vector<std::int64_t>;
using Ranks = std::vector<int>;

TEST(CompareReplicas, NamesThoseThatDifferFromMoreThanHalf) {
  EXPECT_TRUE(compare_replicas(Hashes{5}).odd.empty());
  EXPECT_TRUE(compare_replicas(Hashes{5, 5, 5}).odd.empty());
  const auto expect = [](const Hashes& hashes, const Ranks& odd, int source) {
    const ReplicaComparison found = compare_replicas(hashes);
    EXPECT_EQ(found.odd, odd);
    EXPECT_EQ(found.source, source);
  };
  expect({5, 6, 5}, {1}, 0);
  expect({6, 5, 5}, {0}, 1);
  expect({6, 5, 7, 5, 5}, {0, 2}, 1);
}

TEST(CompareReplicas, KnowsNoBetterWithoutAMajority) {
  for (const Hashes& hashes : {Hashes{5, 6}, Hashes{5, 5, 6, 6}, Hashes{5, 6, 7}}) {
    const ReplicaComparison found = compare_replicas(hashes);
    EXPECT_FALSE(found.source);
    EXPECT_EQ(found.odd.size(), hashes.size() - (hashes.size() == 4 ? 2 : 1));
  }
}

}  // namespace
}  // namespace lockstep
