#include "launcher/cli/launched_job.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/environment_testing.h"

namespace lockstep {
namespace {

const LaunchedJob kSecondOfThree{
    .is_srun = true, .launchers = 3, .node_rank = 1, .first = {"n1", 15'123}};

void meet_in_step(RunFlags& flags, const std::optional<LaunchedJob>& step) {
  meet_in_job(
      flags, step, [] { return std::string(); }, 0);
}

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
    const auto step = launched_job();
    ASSERT_TRUE(step);
    EXPECT_EQ(step->launchers, 2);
    EXPECT_EQ(step->launchers_here, 1);
    EXPECT_EQ(step->node_rank, 1);
    EXPECT_EQ(step->first.host, "n1");
    EXPECT_EQ(step->first.port, 15'007);
  }
  values.erase("SLURM_PROCID");  // As in a batch script.
  const EnvironmentForTest environment(values);
  EXPECT_FALSE(launched_job());
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
  meet_in_step(flags, LaunchedJob{.is_srun = true, .first = {"n1", 15'000}});
  EXPECT_EQ(flags.nnodes, "");
}

TEST(SrunStep, SeveralLaunchersOnAMachineAreRefused) {
  RunFlags flags;
  LaunchedJob crowded = kSecondOfThree;
  crowded.launchers_here = 2;
  EXPECT_THROW(meet_in_step(flags, crowded), UsageError);
}

std::function<std::string()> host(const std::string& name) {
  return [name] { return name; };
}

std::string told_by_first(const std::string&) {
  return "10.0.0.1/15007";
}

const LaunchedJob kSecondLauncher{.launchers = 3, .node_rank = 1, .broadcast = told_by_first};

std::string refusal_of_meeting(RunFlags flags, const LaunchedJob& job) {
  try {
    meet_in_job(flags, job, host("10.0.0.2"), 15'001);
    return "accepted";
  } catch (const UsageError& error) {
    return error.what();
  }
}

TEST(MpirunJob, IsWhatMpirunSays) {
  {
    const EnvironmentForTest environment({{"PMI_RANK", "1"},
                                          {"PMI_SIZE", "2"},
                                          {"MPI_LOCALRANKID", "0"},
                                          {"MPI_LOCALNRANKS", "1"},
                                          {"PMI_FD", "99"}});
    const auto job = launched_job();
    ASSERT_TRUE(job);
    EXPECT_EQ(job->launchers, 2);
    EXPECT_EQ(job->launchers_here, 1);
    EXPECT_EQ(job->node_rank, 1);
    EXPECT_TRUE(job->broadcast);
  }
  {
    const EnvironmentForTest environment({{"OMPI_COMM_WORLD_RANK", "1"},
                                          {"OMPI_COMM_WORLD_SIZE", "2"},
                                          {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
    const auto job = launched_job();
    ASSERT_TRUE(job);
    EXPECT_EQ(job->launchers_here, 2);
    EXPECT_FALSE(job->broadcast);
  }
  const EnvironmentForTest environment({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}});
  EXPECT_FALSE(launched_job());
}

TEST(MpirunJob, LaunchersMeetAtTheFirst) {
  RunFlags flags;
  meet_in_job(flags, kSecondLauncher, host("10.0.0.2"), 15'001);
  EXPECT_EQ(flags.nnodes, "3");
  EXPECT_EQ(flags.node_rank, "1");
  EXPECT_EQ(flags.master_addr, "10.0.0.1");
  EXPECT_EQ(flags.master_port, "15007");
}

TEST(MpirunJob, TheFirstTellsItsOwnAddress) {
  std::string told;
  LaunchedJob first = kSecondLauncher;
  first.broadcast = [&](const std::string& text) { return told = text; };
  RunFlags flags;
  meet_in_job(flags, first, host("10.0.0.2"), 15'001);
  EXPECT_EQ(told, "10.0.0.2/15001");
  EXPECT_EQ(flags.master_addr, "10.0.0.2");
  flags = {};
  flags.master_port = "29501";
  meet_in_job(flags, first, host("fd00::2"), 15'001);
  EXPECT_EQ(told, "fd00::2/29501");
}

TEST(MpirunJob, WhatTheFlagsSayCounts) {
  LaunchedJob untold = kSecondLauncher;
  untold.broadcast = nullptr;
  RunFlags with_address;
  with_address.master_addr = "a";
  meet_in_job(with_address, untold, host(""), 0);
  EXPECT_EQ(with_address.nnodes, "3");
  EXPECT_EQ(with_address.node_rank, "1");
  EXPECT_EQ(with_address.master_addr, "a");
  EXPECT_EQ(with_address.master_port, "");
  RunFlags standalone;
  standalone.standalone = true;
  RunFlags with_endpoint;
  with_endpoint.rdzv_endpoint = "a";
  for (RunFlags flags : {standalone, with_endpoint}) {
    meet_in_job(flags, untold, host(""), 0);
    EXPECT_EQ(flags.nnodes, "");
  }
  RunFlags alone;
  meet_in_job(alone, LaunchedJob{}, host(""), 0);
  meet_in_job(alone, std::nullopt, host(""), 0);
  EXPECT_EQ(alone.nnodes, "");
}

TEST(MpirunJob, WhatCannotWorkIsRefused) {
  LaunchedJob untold = kSecondLauncher;
  untold.broadcast = nullptr;
  EXPECT_NE(refusal_of_meeting({}, untold).find("add --master-addr=HOST"), std::string::npos);
  LaunchedJob crowded = kSecondLauncher;
  crowded.launchers_here = 2;
  EXPECT_NE(refusal_of_meeting({}, crowded).find("mpirun started 2 launchers on this machine"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep
