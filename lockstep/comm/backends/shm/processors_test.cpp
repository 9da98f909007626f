#include "lockstep/comm/backends/shm/processors.h"

#include <vector>

#include <gtest/gtest.h>

#include "lockstep/os/machine/affinity.h"

namespace lockstep::shm {
namespace {

// The rank may run on the processors that have a bit in `cpus`.
Processors allowed(std::uint64_t cpus, std::uint32_t local_ranks, std::uint32_t quota = 8192) {
  return {.quota = quota, .local_ranks = local_ranks, .allowed = {cpus}};
}

bool side_by_side(const std::vector<Processors>& ranks) {
  std::vector<const Processors*> pointers;
  for (const Processors& rank : ranks) pointers.push_back(&rank);
  return run_side_by_side(pointers);
}

TEST(Processors, AsManyAsRanksAreEnough) {
  EXPECT_TRUE(side_by_side({allowed(0b11, 2), allowed(0b11, 2)}));
  EXPECT_FALSE(side_by_side({allowed(0b11, 3), allowed(0b11, 3), allowed(0b11, 3)}));
}

TEST(Processors, RanksBoundToOneEachHaveThemTogether) {
  EXPECT_TRUE(side_by_side({allowed(0b01, 2), allowed(0b10, 2)}));
  EXPECT_FALSE(side_by_side({allowed(0b01, 2), allowed(0b01, 2)}));
}

TEST(Processors, ASubgroupSharesThemWithTheOtherRanksUnlessItIsBound) {
  EXPECT_FALSE(side_by_side({allowed(0b11, 4), allowed(0b11, 4)}));
  EXPECT_TRUE(side_by_side({allowed(0b01, 4), allowed(0b10, 4)}));
}

TEST(Processors, NoMoreThanTheQuotaOfAnyRank) {
  EXPECT_FALSE(side_by_side({allowed(0b11, 2), allowed(0b11, 2, 1)}));
}

TEST(Processors, OwnAreThoseThatTheThreadMayRunOn) {
  const PinnedToCpu pinned(allowed_cpus().back());
  ASSERT_TRUE(pinned.pinned());
  const Processors own = own_processors(1);
  EXPECT_TRUE(side_by_side({own}));
  EXPECT_FALSE(side_by_side({own, own}));
}

}  // namespace
}  // namespace lockstep::shm
