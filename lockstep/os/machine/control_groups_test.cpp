#include "lockstep/os/machine/control_groups.h"

#include <gtest/gtest.h>

#include "lockstep/os/machine/system_root_testing.h"

namespace lockstep {
namespace {

class CpuQuotaTest : public SystemRootTest {
 protected:
  std::optional<double> quota() const { return cpu_quota(root()); }
};

TEST_F(CpuQuotaTest, NothingLimitsWhereThereAreNoGroups) {
  EXPECT_EQ(quota(), std::nullopt);
  write("proc/self/cgroup", "0::/job\n");
  EXPECT_EQ(quota(), std::nullopt);
}

TEST_F(CpuQuotaTest, TheSecondVersionsIsTheLeastOfAllAbove) {
  write("proc/self/cgroup", "0::/machine/job\n");
  write("sys/fs/cgroup/machine/job/cpu.max", "max 100000\n");
  EXPECT_EQ(quota(), std::nullopt);
  write("sys/fs/cgroup/machine/cpu.max", "250000 100000\n");
  EXPECT_EQ(quota(), 2.5);
  write("sys/fs/cgroup/machine/job/cpu.max", "400000 100000\n");
  EXPECT_EQ(quota(), 2.5);
  write("sys/fs/cgroup/machine/job/cpu.max", "50000 100000\n");
  EXPECT_EQ(quota(), 0.5);
}

TEST_F(CpuQuotaTest, TheFirstVersionsIsThatOfItsController) {
  write("proc/self/cgroup", "5:memory:/other\n4:cpu,cpuacct:/job\n0::/\n");
  write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/memory/other/cpu.cfs_quota_us", "100000\n");
  write("sys/fs/cgroup/memory/other/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), std::nullopt);
  write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "300000\n");
  EXPECT_EQ(quota(), 3);
}

// In a container the path is often the host's, of which only the group itself is mounted.
TEST_F(CpuQuotaTest, AMountedGroupCountsWhereItsPathIsNotThere) {
  write("proc/self/cgroup", "4:cpu:/docker/0123\n");
  write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n");
  write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), 2);
}

}  // namespace
}  // namespace lockstep
