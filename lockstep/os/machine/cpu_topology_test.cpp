#include "lockstep/os/machine/cpu_topology.h"

#include <gtest/gtest.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/os/machine/affinity.h"
#include "lockstep/os/machine/gpu_nodes.h"
#include "lockstep/os/machine/system_root_testing.h"

namespace lockstep {
namespace {

class CpuTopologyTest : public SystemRootTest {
 protected:
  void write(const std::string& file, const std::string& text) const {
    SystemRootTest::write(file, text + "\n");
  }
  void write_cpu(int cpu, int package, const std::string& siblings, const std::string& l3) const {
    const std::string folder = concat("sys/devices/system/cpu/cpu", cpu, "/");
    write(folder + "topology/physical_package_id", concat(package));
    write(folder + "topology/thread_siblings_list", siblings);
    write(folder + "cache/index0/level", "1");
    write(folder + "cache/index0/type", "Data");
    write(folder + "cache/index0/shared_cpu_list", siblings);
    write(folder + "cache/index3/level", "3");
    write(folder + "cache/index3/type", "Unified");
    write(folder + "cache/index3/shared_cpu_list", l3);
  }
  std::vector<CpuPlace> places(const std::vector<int>& cpus) const {
    return read_cpu_places(cpus, root());
  }
  void write_gpu(const std::string& address, const std::string& uuid,
                 const std::string& node) const {
    write("proc/driver/nvidia/gpus/" + address + "/information",
          "Model: \t\t NVIDIA H100\nGPU UUID: \t " + uuid + "\nDevice Minor: 0");
    write("sys/bus/pci/devices/" + address + "/numa_node", node);
  }
  std::vector<int> gpu_nodes(const std::optional<std::string>& visible) const {
    return visible_gpu_nodes(read_gpu_places(root()), visible);
  }
};

TEST(CpuList, ReadsRanges) {
  EXPECT_EQ(parse_cpu_list("0-2,4\n"), (std::vector<int>{0, 1, 2, 4}));
  EXPECT_EQ(parse_cpu_list("7, 3-4 ,3"), (std::vector<int>{3, 4, 7}));
  EXPECT_EQ(parse_cpu_list("\n"), std::vector<int>{});
  EXPECT_EQ(parse_cpu_list("x,5-,-1,9-8,1-999999999"), std::vector<int>{});
}

TEST_F(CpuTopologyTest, TellsNodePackageCoreAndCache) {
  write("sys/devices/system/node/online", "0-1");
  write("sys/devices/system/node/node0/cpulist", "0-1,4-5");
  write("sys/devices/system/node/node1/cpulist", "2-3,6-7");
  for (const int cpu : {0, 1, 4, 5})
    write_cpu(cpu, 0, concat(cpu % 4, ",", cpu % 4 + 4), "0-1,4-5");
  for (const int cpu : {2, 3, 6, 7})
    write_cpu(cpu, 1, concat(cpu % 4, ",", cpu % 4 + 4), "2-3,6-7");
  EXPECT_EQ(places({1, 5, 6}),
            (std::vector<CpuPlace>{{.cpu = 1, .node = 0, .package = 0, .core = 1, .cache = 0},
                                   {.cpu = 5, .node = 0, .package = 0, .core = 1, .cache = 0},
                                   {.cpu = 6, .node = 1, .package = 1, .core = 2, .cache = 2}}));
}

TEST_F(CpuTopologyTest, WhatIsHiddenIsTheSimplestMachine) {
  EXPECT_EQ(places({2, 3}), (std::vector<CpuPlace>{{.cpu = 2, .core = 2, .cache = 2},
                                                   {.cpu = 3, .core = 3, .cache = 2}}));
}

TEST_F(CpuTopologyTest, ACacheOfInstructionsIsNoneOfData) {
  const std::string caches = "sys/devices/system/cpu/cpu3/cache/";
  write(caches + "index0/level", "1");
  write(caches + "index0/type", "Data");
  write(caches + "index0/shared_cpu_list", "3");
  write(caches + "index1/level", "2");
  write(caches + "index1/type", "Instruction");
  write(caches + "index1/shared_cpu_list", "1-3");
  EXPECT_EQ(places({3}), (std::vector<CpuPlace>{{.cpu = 3, .core = 3, .cache = 3}}));
}

TEST_F(CpuTopologyTest, ThisMachineHasAPlaceForEachProcessor) {
  const auto here = read_cpu_places(allowed_cpus());
  ASSERT_FALSE(here.empty());
  for (const CpuPlace& place : here) {
    EXPECT_LE(place.core, place.cpu);
    EXPECT_GE(place.node, 0);
  }
}

TEST_F(CpuTopologyTest, GpusAreNumberedByAddressAndNarrowedByCuda) {
  EXPECT_EQ(gpu_nodes(std::nullopt), std::vector<int>{});
  write_gpu("0000:dc:00.0", "GPU-ccc", "1");
  write_gpu("0000:0F:00.0", "GPU-abc", "-1");
  write("sys/bus/pci/devices/0000:0f:00.0/numa_node", "-1");
  write_gpu("0000:8d:00.0", "GPU-abd", "3");
  EXPECT_EQ(gpu_nodes(std::nullopt), (std::vector<int>{0, 3, 1}));
  EXPECT_EQ(gpu_nodes("2,0"), (std::vector<int>{1, 0}));
  EXPECT_EQ(gpu_nodes("GPU-c,GPU-abd"), (std::vector<int>{1, 3}));
  EXPECT_EQ(gpu_nodes("1,GPU-ab,0"), (std::vector<int>{3})) << "stands for two";
  EXPECT_EQ(gpu_nodes("1,7,0"), (std::vector<int>{3})) << "CUDA ends the list there";
  EXPECT_EQ(gpu_nodes(""), std::vector<int>{});
}

}  // namespace
}  // namespace lockstep
