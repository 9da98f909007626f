#include "lockstep/os/memory/out_of_memory.h"

#include <gtest/gtest.h>

#include "lockstep/os/machine/system_root_testing.h"

namespace lockstep {
namespace {

class OutOfMemoryTest : public SystemRootTest {
 protected:
  OutOfMemoryKills kills() const { return OutOfMemoryKills(root()); }
  std::string limit_of(const std::string& file) const {
    return "its memory cgroup has a limit of 512 MB (" + (root() / file).string() + ")";
  }
};

TEST_F(OutOfMemoryTest, CountsInTheGroupOfVersion1) {
  write("proc/self/cgroup", "5:devices:/other\n4:cpu,memory:/job/1\n0::/\n");
  write("sys/fs/cgroup/memory/job/1/memory.oom_control",
        "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
  write("sys/fs/cgroup/memory/job/1/memory.limit_in_bytes", "512000000\n");
  const OutOfMemoryKills kills = this->kills();
  EXPECT_EQ(kills.since(), std::nullopt);
  write("sys/fs/cgroup/memory/job/1/memory.oom_control",
        "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n");
  EXPECT_EQ(kills.since(), limit_of("sys/fs/cgroup/memory/job/1/memory.limit_in_bytes"));
}

TEST_F(OutOfMemoryTest, CountsInTheGroupOfVersion2) {
  write("proc/self/cgroup", "0::/job\n");
  write("sys/fs/cgroup/job/memory.events", "low 0\noom 1\noom_kill 0\n");
  write("sys/fs/cgroup/job/memory.max", "512000000\n");
  const OutOfMemoryKills kills = this->kills();
  write("sys/fs/cgroup/job/memory.events", "low 0\noom 2\noom_kill 1\n");
  EXPECT_EQ(kills.since(), limit_of("sys/fs/cgroup/job/memory.max"));
}

TEST_F(OutOfMemoryTest, FindsAContainersGroupAtTheRoot) {
  write("proc/self/cgroup", "4:memory:/docker/0123\n");
  write("sys/fs/cgroup/memory/memory.oom_control", "oom_kill 0\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "512000000\n");
  const OutOfMemoryKills kills = this->kills();
  write("sys/fs/cgroup/memory/memory.oom_control", "oom_kill 1\n");
  EXPECT_EQ(kills.since(), limit_of("sys/fs/cgroup/memory/memory.limit_in_bytes"));
}

TEST_F(OutOfMemoryTest, ElseOnTheWholeMachine) {
  write("proc/self/cgroup", "0::/\n");
  write("proc/vmstat", "nr_free_pages 7\noom_kill 1\n");
  const OutOfMemoryKills kills = this->kills();
  EXPECT_EQ(kills.since(), std::nullopt);
  write("proc/vmstat", "nr_free_pages 7\noom_kill 2\n");
  EXPECT_EQ(kills.since(), "the machine had none left");
}

TEST_F(OutOfMemoryTest, AGroupWithoutALimitIsTheMachine) {
  write("proc/self/cgroup", "0::/job\n");
  write("sys/fs/cgroup/job/memory.events", "oom_kill 0\n");
  write("sys/fs/cgroup/job/memory.max", "max\n");
  const OutOfMemoryKills kills = this->kills();
  write("sys/fs/cgroup/job/memory.events", "oom_kill 1\n");
  EXPECT_EQ(kills.since(), "the machine had none left");
}

TEST_F(OutOfMemoryTest, ALimitAboveTheMachinesMemoryIsNone) {
  write("proc/self/cgroup", "4:memory:/job\n");
  write("sys/fs/cgroup/memory/job/memory.oom_control", "oom_kill 0\n");
  write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
  const OutOfMemoryKills kills = this->kills();
  write("sys/fs/cgroup/memory/job/memory.oom_control", "oom_kill 1\n");
  EXPECT_EQ(kills.since(), "the machine had none left");
}

TEST_F(OutOfMemoryTest, ASystemThatDoesNotCountTellsNothing) {
  EXPECT_EQ(kills().since(), std::nullopt);
}

}  // namespace
}  // namespace lockstep
