#include "launcher/job/core_binding.h"

#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using Cpus = std::vector<int>;
using Plan = std::vector<Cpus>;

struct Shape {
  int packages = 1;
  int nodes_per_package = 1;
  int caches_per_node = 1;
  int cores_per_cache = 1;
  int threads_per_core = 1;
};

// As Linux numbers them: the first hardware thread of every core, then the second of every core.
std::vector<CpuPlace> machine(const Shape& shape) {
  const int node_count = shape.packages * shape.nodes_per_package;
  const int core_count = node_count * shape.caches_per_node * shape.cores_per_cache;
  std::vector<CpuPlace> places;
  for (int cpu = 0; cpu < core_count * shape.threads_per_core; ++cpu) {
    const int core = cpu % core_count;
    const int cache = core / shape.cores_per_cache;
    const int node = cache / shape.caches_per_node;
    places.push_back({.cpu = cpu,
                      .node = node,
                      .package = node / shape.nodes_per_package,
                      .core = core,
                      .cache = cache * shape.cores_per_cache});
  }
  return places;
}

// Two sockets of two nodes of two caches of two cores of two threads: cores 0-15, threads 0-31.
const std::vector<CpuPlace> kServer = machine({2, 2, 2, 2, 2});

Plan plan_of(NumaBinding binding, const std::vector<CpuPlace>& cpus, int workers,
             const std::vector<int>& gpu_nodes = {}) {
  return plan_core_binding(binding, cpus, gpu_nodes, workers);
}

std::string refusal_of(NumaBinding binding, const std::vector<CpuPlace>& cpus, int workers,
                       const std::vector<int>& gpu_nodes = {}) {
  try {
    plan_of(binding, cpus, workers, gpu_nodes);
    return "accepted";
  } catch (const UsageError& error) {
    return error.what();
  }
}

TEST(CoreBinding, ReadsTorchrunsNames) {
  EXPECT_EQ(parse_numa_binding("node"), NumaBinding::kNode);
  EXPECT_EQ(parse_numa_binding("socket"), NumaBinding::kSocket);
  EXPECT_EQ(parse_numa_binding("exclusive"), NumaBinding::kExclusive);
  EXPECT_EQ(parse_numa_binding("core-complex"), NumaBinding::kCoreComplex);
  EXPECT_THROW(parse_numa_binding("nodes"), UsageError);
}

TEST(CoreBinding, NoneBindsNothing) {
  EXPECT_EQ(plan_of(NumaBinding::kNone, kServer, 4), Plan{});
}

TEST(CoreBinding, AWorkerIsBoundToTheNodeOfItsGpu) {
  EXPECT_EQ(plan_of(NumaBinding::kNode, kServer, 2, {3, 0}),
            (Plan{{12, 13, 14, 15, 28, 29, 30, 31}, {0, 1, 2, 3, 16, 17, 18, 19}}));
  EXPECT_EQ(plan_of(NumaBinding::kSocket, kServer, 2, {3, 0}),
            (Plan{{8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31},
                  {0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23}}));
}

TEST(CoreBinding, GpusOfANodeDivideItsCoresWithTheirThreads) {
  EXPECT_EQ(plan_of(NumaBinding::kExclusive, kServer, 3, {1, 0, 1}),
            (Plan{{4, 5, 20, 21}, {0, 1, 2, 3, 16, 17, 18, 19}, {6, 7, 22, 23}}));
  // The third GPU is another job's, with its cores.
  EXPECT_EQ(plan_of(NumaBinding::kExclusive, kServer, 2, {1, 0, 1}),
            (Plan{{4, 5, 20, 21}, {0, 1, 2, 3, 16, 17, 18, 19}}));
}

TEST(CoreBinding, OddNumbersOfCoresGiveTheFirstOneMore) {
  const auto seven = machine({.cores_per_cache = 7});
  EXPECT_EQ(plan_of(NumaBinding::kExclusive, seven, 3), (Plan{{0, 1, 2}, {3, 4}, {5, 6}}));
  EXPECT_EQ(plan_of(NumaBinding::kExclusive, seven, 3, {0, 0, 0}),
            (Plan{{0, 1, 2}, {3, 4}, {5, 6}}));
}

TEST(CoreBinding, CoreComplexesGoRound) {
  EXPECT_EQ(plan_of(NumaBinding::kCoreComplex, kServer, 3, {0, 0, 0}),
            (Plan{{0, 1, 16, 17}, {2, 3, 18, 19}, {0, 1, 16, 17}}));
  // The largest of what may be used comes first.
  auto some = kServer;
  std::erase_if(some, [](const CpuPlace& place) { return place.cpu == 0; });
  EXPECT_EQ(plan_of(NumaBinding::kCoreComplex, some, 2, {0, 0}),
            (Plan{{2, 3, 18, 19}, {1, 16, 17}}));
}

TEST(CoreBinding, WithoutGpusLocalRanksSpreadOverTheNodes) {
  EXPECT_EQ(plan_of(NumaBinding::kNode, kServer, 4),
            plan_of(NumaBinding::kNode, kServer, 4, {0, 1, 2, 3}));
  EXPECT_EQ(plan_of(NumaBinding::kNode, kServer, 2),
            plan_of(NumaBinding::kNode, kServer, 2, {0, 2}));
  EXPECT_EQ(plan_of(NumaBinding::kExclusive, kServer, 8), (Plan{{0, 1, 16, 17},
                                                                {2, 3, 18, 19},
                                                                {4, 5, 20, 21},
                                                                {6, 7, 22, 23},
                                                                {8, 9, 24, 25},
                                                                {10, 11, 26, 27},
                                                                {12, 13, 28, 29},
                                                                {14, 15, 30, 31}}));
  EXPECT_EQ(plan_of(NumaBinding::kNode, kServer, 3, {1, 1}),
            plan_of(NumaBinding::kNode, kServer, 3))
      << "two GPUs say nothing of three workers";
}

TEST(CoreBinding, NodesWithMoreCoresTakeMoreWorkers) {
  auto lopsided = machine({.nodes_per_package = 2, .cores_per_cache = 3});
  std::erase_if(lopsided, [](const CpuPlace& place) { return place.cpu == 4 || place.cpu == 5; });
  EXPECT_EQ(plan_of(NumaBinding::kExclusive, lopsided, 4), (Plan{{0}, {1}, {2}, {3}}));
}

TEST(CoreBinding, ExclusiveSharesAreDisjointAndLeaveNoCoreOut) {
  for (const auto& cpus : {kServer, machine({1, 1, 1, 5, 1}), machine({2, 1, 3, 3, 2})}) {
    std::set<int> nodes;
    std::set<int> cores;
    for (const CpuPlace& place : cpus) {
      nodes.insert(place.node);
      cores.insert(place.core);
    }
    for (int workers = 1; workers <= static_cast<int>(cores.size()); ++workers) {
      const Plan plan = plan_of(NumaBinding::kExclusive, cpus, workers);
      std::set<int> seen;
      std::size_t count = 0;
      for (const Cpus& own : plan) {
        EXPECT_FALSE(own.empty());
        seen.insert(own.begin(), own.end());
        count += own.size();
      }
      EXPECT_EQ(count, seen.size()) << workers << " workers share a processor";
      if (workers >= static_cast<int>(nodes.size())) {
        EXPECT_EQ(count, cpus.size()) << workers << " workers leave a processor out";
      }
    }
  }
}

TEST(CoreBinding, RefusesAWorkerWithoutProcessors) {
  EXPECT_NE(refusal_of(NumaBinding::kExclusive, machine({.cores_per_cache = 2}), 3)
                .find("node 0 has 2 cores for 3 workers"),
            std::string::npos);
  EXPECT_EQ(plan_of(NumaBinding::kNode, machine({.cores_per_cache = 2}), 3).size(), 3U);
  EXPECT_NE(refusal_of(NumaBinding::kNode, machine({.cores_per_cache = 2}), 1, {1})
                .find("local rank 0 is at NUMA node 1"),
            std::string::npos);
}

TEST(CoreBinding, ThreadsAreAWorkersShareOfTimeAndOfItsProcessors) {
  EXPECT_EQ(thread_share({}, 0, 3, 8), 2);
  EXPECT_EQ(thread_share({}, 0, 8, 2), 1);
  const Plan uneven = {{0, 1, 2, 3}, {0, 1, 2, 3}, {4, 5, 6, 7, 8, 9, 10, 11}};
  EXPECT_EQ(thread_share(uneven, 0, 3, 12), 2);
  EXPECT_EQ(thread_share(uneven, 2, 3, 12), 4);
  EXPECT_EQ(thread_share(uneven, 2, 3, 3), 1) << "the group's quota counts";
}

}  // namespace
}  // namespace lockstep
