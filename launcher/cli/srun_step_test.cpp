#include "launcher/cli/srun_step.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/environment_testing.h"

namespace lockstep {
namespace {

const SrunStep kSecondOfThree{.launchers = 3, .node_rank = 1, .first_host = "n1", .port = 15'123};

TEST(SrunStep, IsWhatSrunSays) {
  EnvironmentForTest::Values values = {{"SLURM_PROCID", "1"},
                                       {"SLURM_STEP_NUM_TASKS", "2"},
                                       {"SLURM_NODEID", "1"},
                                       {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                                       {"SLURM_STEP_NODELIST", "n[1-2]"},
                                       {"SLURM_JOB_ID", "7"},
                                       {"SLURM_STEP_ID", "0"}};
  {
    const EnvironmentForTest environment(values);
    const auto step = srun_step();
    ASSERT_TRUE(step);
    EXPECT_EQ(step->launchers, 2);
    EXPECT_EQ(step->launchers_here, 1);
    EXPECT_EQ(step->node_rank, 1);
    EXPECT_EQ(step->first_host, "n1");
    EXPECT_EQ(step->port, 15'007);
  }
  values.erase("SLURM_PROCID");  // As in a batch script.
  const EnvironmentForTest environment(values);
  EXPECT_FALSE(srun_step());
}

TEST(SrunStep, LaunchersMeetOnItsFirstMachine) {
  RunFlags flags;
  meet_in_step(flags, kSecondOfThree);
  EXPECT_EQ(flags.nnodes, "3");
  EXPECT_EQ(flags.node_rank, "1");
  EXPECT_EQ(flags.master_addr, "n1");
  EXPECT_EQ(flags.master_port, "15123");
}

TEST(SrunStep, FlagsCountMore) {
  RunFlags standalone;
  standalone.standalone = true;
  meet_in_step(standalone, kSecondOfThree);
  EXPECT_EQ(standalone.nnodes, "");
  RunFlags endpoint;
  endpoint.rdzv_endpoint = "n2";
  meet_in_step(endpoint, kSecondOfThree);
  EXPECT_EQ(endpoint.master_addr, "");
  RunFlags port;
  port.master_port = "29500";
  meet_in_step(port, kSecondOfThree);
  EXPECT_EQ(port.master_port, "29500");
  EXPECT_EQ(port.master_addr, "n1");
}

TEST(SrunStep, OneLauncherIsAJobOfItsOwn) {
  RunFlags flags;
  meet_in_step(flags, std::nullopt);
  meet_in_step(flags, SrunStep{.launchers = 1, .first_host = "n1", .port = 15'000});
  EXPECT_EQ(flags.nnodes, "");
}

TEST(SrunStep, SeveralLaunchersOnAMachineAreRefused) {
  RunFlags flags;
  SrunStep crowded = kSecondOfThree;
  crowded.launchers_here = 2;
  EXPECT_THROW(meet_in_step(flags, crowded), UsageError);
}

}  // namespace
}  // namespace lockstep
