#include "lockstep/job/internal/launched_place.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/environment_testing.h"

namespace lockstep {
namespace {

using Launcher = LaunchedPlace::Launcher;

void expect_place(const EnvironmentForTest::Values& values, const LaunchedPlace& expected) {
  const EnvironmentForTest environment(values);
  const auto place = launched_place();
  ASSERT_TRUE(place);
  EXPECT_EQ(place->launcher, expected.launcher);
  EXPECT_EQ(place->rank, expected.rank);
  EXPECT_EQ(place->world_size, expected.world_size);
  EXPECT_EQ(place->local_rank, expected.local_rank);
  EXPECT_EQ(place->local_world_size, expected.local_world_size);
  EXPECT_EQ(place->one_machine, expected.one_machine);
  EXPECT_EQ(launched_rank(), expected.rank);
}

TEST(LaunchedPlace, NobodyGaveOne) {
  const EnvironmentForTest environment({});
  EXPECT_FALSE(launched_place());
  EXPECT_FALSE(launched_rank());
}

TEST(LaunchedPlace, OfMpirun) {
  expect_place(kUnderOpenMpi, {Launcher::kOpenMpi, 1, 4, 1, 4, true});
  expect_place(kUnderMpich, {Launcher::kPmi, 1, 4, 1, 4, true});
  expect_place(kUnderMpich + EnvironmentForTest::Values{{"MPI_LOCALNRANKS", "2"}},
               {Launcher::kPmi, 1, 4, 1, 2, false});
}

TEST(LaunchedPlace, OfSrun) {
  expect_place(kUnderSrun, {Launcher::kSlurm, 3, 4, 1, 2, false});
  expect_place(kUnderSrun + EnvironmentForTest::Values{{"SLURM_STEP_TASKS_PER_NODE", "4"},
                                                       {"SLURM_NODEID", "0"},
                                                       {"SLURM_LOCALID", "3"}},
               {Launcher::kSlurm, 3, 4, 3, 4, true});
}

TEST(LaunchedPlace, WhatIsNotToldIsTheWholeJobs) {
  expect_place({{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}}, {Launcher::kPmi, 1, 4, 1, 4, false});
  expect_place({{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "4"}},
               {Launcher::kSlurm, 1, 4, 1, 4, false});
}

TEST(LaunchedPlace, SrunAlsoSetsWhatMpichsMpirunDoes) {
  expect_place(kUnderSrun + EnvironmentForTest::Values{{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}},
               {Launcher::kSlurm, 3, 4, 1, 2, false});
}

TEST(LaunchedPlace, MpirunInsideAJobOfSlurmsCountsMore) {
  expect_place(kUnderSrun + kUnderMpich, {Launcher::kPmi, 1, 4, 1, 4, true});
  expect_place(kUnderSrun + kUnderOpenMpi, {Launcher::kOpenMpi, 1, 4, 1, 4, true});
}

// Slurm numbers the batch script itself, which is none of the tasks.
TEST(LaunchedPlace, ABatchScriptHasNone) {
  const EnvironmentForTest environment({{"SLURM_PROCID", "0"},
                                        {"SLURM_LOCALID", "0"},
                                        {"SLURM_NODEID", "0"},
                                        {"SLURM_NTASKS", "4"},
                                        {"SLURM_JOB_ID", "4711"}});
  EXPECT_FALSE(launched_place());
}

TEST(LaunchedPlace, RankCountsMore) {
  const EnvironmentForTest environment(kUnderSrun + EnvironmentForTest::Values{{"RANK", "7"}});
  EXPECT_EQ(launched_rank(), 7);
}

TEST(LaunchedPlace, WhatIsNoNumberIsRefused) {
  const EnvironmentForTest environment({{"PMI_RANK", "first"}, {"PMI_SIZE", "4"}});
  EXPECT_THROW(launched_place(), UsageError);
}

}  // namespace
}  // namespace lockstep
