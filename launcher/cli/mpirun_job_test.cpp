#include "launcher/cli/mpirun_job.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/environment_testing.h"

namespace lockstep {
namespace {

std::string told_by_first(const std::string&) {
  return "10.0.0.1/15007";
}

const MpirunJob kSecondLauncher{.launchers = 3, .rank = 1, .broadcast = told_by_first};

std::string refusal_of_meeting(RunFlags flags, const MpirunJob& job) {
  try {
    meet_in_job(flags, job, "10.0.0.2", 15'001);
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
    const auto job = mpirun_job();
    ASSERT_TRUE(job);
    EXPECT_EQ(job->launchers, 2);
    EXPECT_EQ(job->launchers_here, 1);
    EXPECT_EQ(job->rank, 1);
    EXPECT_TRUE(job->broadcast);
  }
  {
    const EnvironmentForTest environment({{"OMPI_COMM_WORLD_RANK", "1"},
                                          {"OMPI_COMM_WORLD_SIZE", "2"},
                                          {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
    const auto job = mpirun_job();
    ASSERT_TRUE(job);
    EXPECT_EQ(job->launchers_here, 2);
    EXPECT_FALSE(job->broadcast);
  }
  const EnvironmentForTest environment({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}});
  EXPECT_FALSE(mpirun_job());
}

TEST(MpirunJob, LaunchersMeetAtTheFirst) {
  RunFlags flags;
  meet_in_job(flags, kSecondLauncher, "10.0.0.2", 15'001);
  EXPECT_EQ(flags.nnodes, "3");
  EXPECT_EQ(flags.node_rank, "1");
  EXPECT_EQ(flags.master_addr, "10.0.0.1");
  EXPECT_EQ(flags.master_port, "15007");
}

TEST(MpirunJob, TheFirstTellsItsOwnAddress) {
  std::string told;
  MpirunJob first = kSecondLauncher;
  first.broadcast = [&](const std::string& text) { return told = text; };
  RunFlags flags;
  meet_in_job(flags, first, "10.0.0.2", 15'001);
  EXPECT_EQ(told, "10.0.0.2/15001");
  EXPECT_EQ(flags.master_addr, "10.0.0.2");
  flags = {};
  flags.master_port = "29501";
  meet_in_job(flags, first, "fd00::2", 15'001);
  EXPECT_EQ(told, "fd00::2/29501");
}

TEST(MpirunJob, WhatTheFlagsSayCounts) {
  MpirunJob untold = kSecondLauncher;
  untold.broadcast = nullptr;
  RunFlags with_address;
  with_address.master_addr = "a";
  meet_in_job(with_address, untold, "", 0);
  EXPECT_EQ(with_address.nnodes, "3");
  EXPECT_EQ(with_address.node_rank, "1");
  EXPECT_EQ(with_address.master_addr, "a");
  EXPECT_EQ(with_address.master_port, "");
  RunFlags standalone;
  standalone.standalone = true;
  RunFlags with_endpoint;
  with_endpoint.rdzv_endpoint = "a";
  for (RunFlags flags : {standalone, with_endpoint}) {
    meet_in_job(flags, untold, "", 0);
    EXPECT_EQ(flags.nnodes, "");
  }
  RunFlags alone;
  meet_in_job(alone, MpirunJob{}, "", 0);
  meet_in_job(alone, std::nullopt, "", 0);
  EXPECT_EQ(alone.nnodes, "");
}

TEST(MpirunJob, WhatCannotWorkIsRefused) {
  MpirunJob untold = kSecondLauncher;
  untold.broadcast = nullptr;
  EXPECT_NE(refusal_of_meeting({}, untold).find("add --master-addr=HOST"), std::string::npos);
  MpirunJob crowded = kSecondLauncher;
  crowded.launchers_here = 2;
  EXPECT_NE(refusal_of_meeting({}, crowded).find("mpirun started 2 launchers on this machine"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep
