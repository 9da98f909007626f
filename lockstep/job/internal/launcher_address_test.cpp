#include "lockstep/job/internal/launcher_address.h"

#include <set>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/environment_testing.h"

namespace lockstep {
namespace {

using Values = EnvironmentForTest::Values;

LauncherAddress address(const Values& values, MpiLibrary mpi = MpiLibrary::kNone) {
  const EnvironmentForTest environment(values);
  return launcher_address(launched_place().value(), mpi);
}

std::string no_address(const Values& values, MpiLibrary mpi = MpiLibrary::kNone) {
  try {
    return "found " + address(values, mpi).host;
  } catch (const UsageError& error) {
    return error.what();
  }
}

const Values kGiven = {{"MASTER_ADDR", "10.0.0.7"}, {"MASTER_PORT", "29500"}};
const Values kOneMachine = {{"SLURM_STEP_TASKS_PER_NODE", "4"}, {"SLURM_NODEID", "0"}};

TEST(LauncherAddress, WhatIsGivenCountsMost) {
  for (const Values& launcher : {kUnderOpenMpi, kUnderMpich, kUnderSrun}) {
    const auto given = address(launcher + kGiven, MpiLibrary::kOpenMpi);
    EXPECT_EQ(given.store, RendezvousStore::kTcp);
    EXPECT_EQ(given.host, "10.0.0.7");
    EXPECT_EQ(given.port, 29500);
    EXPECT_EQ(given.source, "");
  }
}

TEST(LauncherAddress, UnderSrunTheFirstMachineOfTheStep) {
  for (const auto mpi : {MpiLibrary::kNone, MpiLibrary::kOpenMpi, MpiLibrary::kOther}) {
    const auto found = address(kUnderSrun, mpi);
    EXPECT_EQ(found.store, RendezvousStore::kTcp);
    EXPECT_EQ(found.host, "gpu07");
    EXPECT_EQ(found.port, 15000 + (4711 + 2 * 1009) % 14000);
    EXPECT_NE(found.source, "");
  }
  EXPECT_EQ(address(kUnderSrun + kOneMachine).host, "127.0.0.1");
}

TEST(LauncherAddress, UnderSrunOneOfTheTwoMayBeGiven) {
  const auto host = address(kUnderSrun + Values{{"MASTER_ADDR", "gpu07-ib"}});
  EXPECT_EQ(host.host, "gpu07-ib");
  EXPECT_EQ(host.port, address(kUnderSrun).port);
  const auto port = address(kUnderSrun + Values{{"MASTER_PORT", "1234"}});
  EXPECT_EQ(port.host, "gpu07");
  EXPECT_EQ(port.port, 1234);
}

TEST(LauncherAddress, NeighbouringJobsAndStepsHavePortsApart) {
  std::set<int> ports;
  for (int job = 65530; job < 65540; ++job) {
    for (int step = 0; step < 10; ++step) {
      const Values values{{"SLURM_JOB_ID", std::to_string(job)},
                          {"SLURM_STEP_ID", std::to_string(step)}};
      const int port = address(kUnderSrun + values).port;
      EXPECT_GE(port, 15000);
      EXPECT_LT(port, 29000);
      ports.insert(port);
    }
  }
  EXPECT_EQ(ports.size(), 100U);
}

TEST(LauncherAddress, StepsWithLargeNumbers) {
  const auto found = address(kUnderSrun + Values{{"SLURM_STEP_ID", "4294967290"}});
  EXPECT_EQ(found.port, 15000 + static_cast<int>((4711 + 1009 * 4294967290ULL) % 14000));
}

TEST(LauncherAddress, WithoutJobOrMachinesSrunsRanksAreToldWhatToSet) {
  for (const char* name : {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NODELIST"}) {
    EXPECT_NE(no_address(kUnderSrun + Values{{name, ""}}).find("set MASTER_ADDR and MASTER_PORT"),
              std::string::npos)
        << name;
  }
  EXPECT_NE(no_address(kUnderSrun + Values{{"SLURM_STEP_NODELIST", "[1-2"}}).find("'[1-2'"),
            std::string::npos);
}

TEST(LauncherAddress, UnderTheMpirunOfThisBuildsMpiThroughIt) {
  EXPECT_EQ(address(kUnderOpenMpi, MpiLibrary::kOpenMpi).store, RendezvousStore::kMpi);
  EXPECT_EQ(address(kUnderMpich, MpiLibrary::kOther).store, RendezvousStore::kMpi);
}

TEST(LauncherAddress, UnderAnotherMpirunWithoutMpi) {
  for (const auto mpi : {MpiLibrary::kNone, MpiLibrary::kOpenMpi}) {
    EXPECT_EQ(address(kUnderMpich, mpi).store, RendezvousStore::kPmi);
  }
  for (const auto mpi : {MpiLibrary::kNone, MpiLibrary::kOther}) {
    const auto found = address(kUnderOpenMpi, mpi);
    EXPECT_EQ(found.store, RendezvousStore::kTcp);
    EXPECT_EQ(found.host, "127.0.0.1");
    EXPECT_GE(found.port, 15000);
    EXPECT_LT(found.port, 29000);
    EXPECT_EQ(found.source, "PMIX_NAMESPACE");
    EXPECT_NE(address(kUnderOpenMpi + Values{{"PMIX_NAMESPACE", "508821506"}}, mpi).port,
              found.port);
  }
}

TEST(LauncherAddress, WhereNothingHelpsItSaysWhatToSet) {
  const Values two_machines{{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  EXPECT_NE(no_address(kUnderOpenMpi + two_machines).find("this build has no MPI"),
            std::string::npos);
  EXPECT_NE(no_address(kUnderMpich + Values{{"PMI_FD", ""}}, MpiLibrary::kOpenMpi)
                .find("this build has Open MPI"),
            std::string::npos);
  EXPECT_NE(no_address(kUnderOpenMpi + two_machines).find("set MASTER_ADDR"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
