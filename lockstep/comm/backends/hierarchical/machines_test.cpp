#include "lockstep/comm/backends/hierarchical/machines.h"

#include <gtest/gtest.h>

namespace lockstep::hierarchical {
namespace {

using Ranks = std::vector<int>;

TEST(Machines, OfOneSizeHaveAPartnerForEveryRank) {
  const MemoryDomains domains{0, 0, 2, 2};
  const Machines first = machines_of(domains, 1);
  EXPECT_EQ(first.count, 2);
  EXPECT_EQ(first.machine, 0);
  EXPECT_EQ(first.local_ranks(), (Ranks{0, 1}));
  EXPECT_EQ(first.local_index, 1);
  EXPECT_EQ(first.shares, 2);
  EXPECT_EQ(first.partners, (Ranks{1, 3}));
  EXPECT_EQ(machines_of(domains, 2).machine, 1);
  EXPECT_EQ(machines_of(domains, 2).partners, (Ranks{0, 2}));
}

TEST(Machines, MayTakeTurns) {
  const Machines machines = machines_of({0, 1, 0, 1}, 2);
  EXPECT_EQ(machines.machine, 0);
  EXPECT_EQ(machines.local_ranks(), (Ranks{0, 2}));
  EXPECT_EQ(machines.partners, (Ranks{2, 3}));
}

TEST(Machines, OfSeveralSizesHaveAsManySharesAsTheSmallestHasRanks) {
  const MemoryDomains domains{0, 0, 0, 3};
  EXPECT_EQ(machines_of(domains, 0).shares, 1);
  EXPECT_EQ(machines_of(domains, 0).most_ranks, 3);
  EXPECT_EQ(machines_of(domains, 0).partners, (Ranks{0, 3}));
  EXPECT_EQ(machines_of(domains, 3).partners, (Ranks{0, 3}));
  EXPECT_FALSE(machines_of(domains, 2).has_share());
  EXPECT_EQ(machines_of(domains, 2).partners, Ranks{});
}

TEST(Machines, OfOneRankEachAndOneOfAll) {
  EXPECT_EQ(machines_of({0, 1, 2}, 2).partners, (Ranks{0, 1, 2}));
  EXPECT_EQ(machines_of({0, 1, 2}, 2).most_ranks, 1);
  EXPECT_EQ(machines_of({0, 0, 0}, 1).count, 1);
  EXPECT_EQ(machines_of({0, 0, 0}, 1).shares, 3);
}

}  // namespace
}  // namespace lockstep::hierarchical
