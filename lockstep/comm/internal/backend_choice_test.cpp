#include "lockstep/comm/internal/backend_choice.h"

#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/env.h"

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

TEST(BackendChoice, RanksOfSeveralMachinesDoSoWithinThem) {
  EXPECT_EQ(choose_backend({0, 1}), "gloo");
  EXPECT_EQ(choose_backend({0, 0, 2, 2}), "hierarchical");
  EXPECT_EQ(choose_backend({0, 1, 0}), "hierarchical");
  MemoryDomains large(66, 1);
  large[0] = 0;
  EXPECT_EQ(choose_backend(large), "gloo");
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

TEST(BackendChoice, RanksOfOneMachineCanBeToldApart) {
  c10d::HashStore store;
  publish_memory_domain(store, 0);
  ::setenv(env::kMemoryDomain.name, "a container", 1);
  publish_memory_domain(store, 1);
  publish_memory_domain(store, 2);
  ::unsetenv(env::kMemoryDomain.name);
  EXPECT_EQ(read_memory_domains(store, 3), (MemoryDomains{0, 1, 1}));
}

TEST(BackendChoice, RanksThatDoNotTellAreNamed) {
  c10d::HashStore store;
  try {
    exchange_memory_domains(store, 1, 3, Deadline::after(std::chrono::milliseconds(20)));
    FAIL();
  } catch (const TimeoutError& error) {
    EXPECT_EQ(error.fields().ranks, (std::vector<int>{0, 2}));
    EXPECT_NE(std::string(error.what()).find("ranks 0, 2 did not publish"), std::string::npos);
  }
}

}  // namespace
}  // namespace lockstep
