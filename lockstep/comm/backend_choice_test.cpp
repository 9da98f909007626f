#include "lockstep/comm/backend_choice.h"

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace lockstep {
namespace {

TEST(BackendChoice, RanksOfOneMachineShareMemory) {
  EXPECT_EQ(choose_backend({0}), "shm");
  EXPECT_EQ(choose_backend({0, 0, 0}), "shm");
}

TEST(BackendChoice, MoreRanksThanASegmentHasArenasDoNot) {
  EXPECT_EQ(choose_backend(MemoryDomains(64, 0)), "shm");
  EXPECT_EQ(choose_backend(MemoryDomains(65, 0)), "gloo");
}

TEST(BackendChoice, RanksOfSeveralMachinesDoNot) {
  EXPECT_EQ(choose_backend({0, 1}), "gloo");
}

TEST(BackendChoice, DomainsAreNumberedByTheirFirstRankInTheGroup) {
  const MemoryDomains job{0, 0, 2, 2, 4};
  EXPECT_EQ(domains_of(job, {2, 3}), (MemoryDomains{0, 0}));
  EXPECT_EQ(domains_of(job, {4, 1, 0}), (MemoryDomains{0, 1, 1}));
}

TEST(BackendChoice, RanksReadWhatOthersPublished) {
  c10d::HashStore store;
  for (int rank = 0; rank < 3; ++rank) publish_memory_domain(store, rank);
  EXPECT_EQ(read_memory_domains(store, 3), (MemoryDomains{0, 0, 0}));
}

}  // namespace
}  // namespace lockstep
