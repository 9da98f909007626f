#include "lockstep/comm/internal/init_plan.h"

#include <string>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/environment_testing.h"

namespace lockstep {
namespace {

InitPlan plan_init(const InitOptions& options, bool has_store) {
  return lockstep::plan_init(options, has_store, MpiLibrary::kOpenMpi);
}

std::string refusal(const InitOptions& options, bool has_store = false) {
  try {
    plan_init(options, has_store);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

#define EXPECT_REFUSED(options, words) \
  EXPECT_NE(refusal options.find(words), std::string::npos) << refusal options

TEST(InitPlan, WithoutALauncherTheJobIsOneProcess) {
  const EnvironmentForTest environment({});
  const InitPlan plan = plan_init({}, false);
  EXPECT_EQ(plan.world_size, 1);
  EXPECT_EQ(plan.rank, 0);
  EXPECT_EQ(plan.store, InitPlan::Store::kNone);
}

TEST(InitPlan, ReadsWhatTheLauncherSet) {
  const EnvironmentForTest environment({{"RANK", "0"},
                                        {"WORLD_SIZE", "4"},
                                        {"LOCAL_RANK", "0"},
                                        {"LOCAL_WORLD_SIZE", "2"},
                                        {"MASTER_ADDR", "10.0.0.7"},
                                        {"MASTER_PORT", "29500"},
                                        {"TORCHELASTIC_RESTART_COUNT", "3"},
                                        {"LOCKSTEP_STORE_LISTEN_FD", "5"},
                                        {"LOCKSTEP_TIMEOUT_S", "1.5"}});
  const InitPlan plan = plan_init({}, false);
  EXPECT_EQ(plan.store, InitPlan::Store::kTcp);
  EXPECT_EQ(plan.host, "10.0.0.7");
  EXPECT_EQ(plan.port, 29500);
  EXPECT_EQ(plan.generation, 3);
  EXPECT_EQ(plan.local_world_size, 2);
  EXPECT_TRUE(plan.serves_store);
  EXPECT_EQ(plan.listen_fd, 5);
  EXPECT_EQ(plan.timeout, std::chrono::milliseconds(1500));
}

TEST(InitPlan, RanksOfTorchAreMetWhereTheLauncherSays) {
  const InitOptions options{.init_method = "torch://"};
  {
    const EnvironmentForTest environment({{"RANK", "1"},
                                          {"WORLD_SIZE", "2"},
                                          {"MASTER_ADDR", "10.0.0.7"},
                                          {"MASTER_PORT", "29500"}});
    const InitPlan plan = plan_init(options, false);
    EXPECT_TRUE(plan.meets_torch);
    EXPECT_EQ(plan.store, InitPlan::Store::kTcp);
    EXPECT_EQ(plan.host, "10.0.0.7");
    EXPECT_FALSE(plan_init({}, false).meets_torch);
  }
  const EnvironmentForTest environment(
      {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}});
  EXPECT_REFUSED((options), "torch:// needs RANK and WORLD_SIZE");
}

TEST(InitPlan, ALauncherThatServesTheStoreLeavesNothingToServe) {
  const EnvironmentForTest environment({{"RANK", "0"},
                                        {"WORLD_SIZE", "2"},
                                        {"MASTER_ADDR", "localhost"},
                                        {"MASTER_PORT", "1"},
                                        {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  EXPECT_FALSE(plan_init({}, false).serves_store);
}

TEST(InitPlan, ArgumentsBeatTheEnvironment) {
  const EnvironmentForTest environment({{"RANK", "0"},
                                        {"WORLD_SIZE", "2"},
                                        {"MASTER_ADDR", "localhost"},
                                        {"MASTER_PORT", "1"},
                                        {"LOCKSTEP_BACKEND", "nccl"},
                                        {"LOCKSTEP_TIMEOUT_S", "1"}});
  const InitPlan plan = plan_init({.backend = "gloo",
                                   .init_method = "tcp://[::1]:29501",
                                   .rank = 2,
                                   .world_size = 3,
                                   .timeout = std::chrono::seconds(9)},
                                  false);
  EXPECT_EQ(plan.host, "::1");
  EXPECT_EQ(plan.port, 29501);
  EXPECT_EQ(plan.rank, 2);
  EXPECT_EQ(plan.world_size, 3);
  EXPECT_EQ(plan.backend, "gloo");
  EXPECT_EQ(plan.timeout, std::chrono::seconds(9));
  EXPECT_FALSE(plan.serves_store);
}

TEST(InitPlan, FileAndGivenStores) {
  const EnvironmentForTest environment({});
  const InitPlan file =
      plan_init({.init_method = "file:///tmp/x/y", .rank = 1, .world_size = 2}, false);
  EXPECT_EQ(file.path, "/tmp/x/y");
  EXPECT_EQ(file.store, InitPlan::Store::kFile);
  EXPECT_EQ(plan_init({.rank = 1, .world_size = 2}, true).store, InitPlan::Store::kGiven);
}

TEST(InitPlan, RefusesWhatCannotWorkAndNamesIt) {
  const EnvironmentForTest environment({});
  using Options = InitOptions;
  EXPECT_REFUSED((Options{.init_method = "env:"}), "env:");
  EXPECT_REFUSED((Options{.init_method = "tcp://host", .rank = 0, .world_size = 1}), "tcp://host");
  EXPECT_REFUSED((Options{.init_method = "tcp://:1", .rank = 0, .world_size = 1}), "no host");
  EXPECT_REFUSED((Options{.init_method = "tcp://h:65536", .rank = 0, .world_size = 1}), "65536");
  EXPECT_REFUSED((Options{.init_method = "tcp://h:1", .world_size = 1}), "rank");
  EXPECT_REFUSED((Options{.init_method = "tcp://h:1", .rank = 2, .world_size = 2}), "rank 2");
  EXPECT_REFUSED((Options{.init_method = "tcp://h:1", .rank = -1, .world_size = 2}), "rank -1");
  EXPECT_REFUSED((Options{.init_method = "tcp://h:1", .rank = 0, .world_size = 0}), "world size 0");
  EXPECT_REFUSED((Options{.rank = 0}), "WORLD_SIZE");
  EXPECT_REFUSED((Options{.rank = 0, .world_size = 2}), "MASTER_ADDR");
  EXPECT_REFUSED((Options{.timeout = std::chrono::milliseconds(0)}), "timeout");
  EXPECT_REFUSED((Options{.rank = 0}, true), "world_size");
}

TEST(InitPlan, TakesThePlaceThatMpirunGaveOut) {
  const EnvironmentForTest environment(kUnderOpenMpi);
  const InitPlan plan = plan_init({}, false);
  EXPECT_EQ(plan.rank, 1);
  EXPECT_EQ(plan.world_size, 4);
  EXPECT_EQ(plan.local_rank, 1);
  EXPECT_EQ(plan.local_world_size, 4);
  EXPECT_EQ(plan.store, InitPlan::Store::kMpi);
  EXPECT_TRUE(plan.one_machine);
  EXPECT_FALSE(plan.serves_store);
}

TEST(InitPlan, TakesThePlaceThatSrunGaveOut) {
  const EnvironmentForTest environment(kUnderSrun);
  const InitPlan plan = plan_init({}, false);
  EXPECT_EQ(plan.rank, 3);
  EXPECT_EQ(plan.local_rank, 1);
  EXPECT_EQ(plan.local_world_size, 2);
  EXPECT_FALSE(plan.one_machine);
  EXPECT_EQ(plan.store, InitPlan::Store::kTcp);
  EXPECT_EQ(plan.host, "gpu07");
  EXPECT_NE(plan.address_source, "");
  EXPECT_FALSE(plan.serves_store);
}

TEST(InitPlan, ARankThatIsGivenHasThePlaceOnItsMachineThatSrunGaveOut) {
  const EnvironmentForTest environment(kUnderSrun);
  const InitPlan plan =
      plan_init({.init_method = "tcp://10.0.0.1:29500", .rank = 3, .world_size = 4}, false);
  EXPECT_EQ(plan.local_rank, 1);
  EXPECT_EQ(plan.local_world_size, 2);
}

TEST(InitPlan, RanksOfMpirunMeetAtAnAddressThatIsGiven) {
  const EnvironmentForTest environment({{"PMI_RANK", "0"},
                                        {"PMI_SIZE", "2"},
                                        {"MASTER_ADDR", "10.0.0.7"},
                                        {"MASTER_PORT", "29500"}});
  const InitPlan plan = plan_init({}, false);
  EXPECT_EQ(plan.store, InitPlan::Store::kTcp);
  EXPECT_EQ(plan.host, "10.0.0.7");
  EXPECT_EQ(plan.address_source, "");
  EXPECT_TRUE(plan.serves_store);
}

TEST(InitPlan, OneProcessUnderMpirunMeetsNobody) {
  const EnvironmentForTest environment({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}});
  EXPECT_EQ(plan_init({}, false).store, InitPlan::Store::kNone);
}

TEST(InitPlan, RanksGivenByALauncherOfOursCountMoreThanMpis) {
  const EnvironmentForTest environment({{"PMI_RANK", "0"},
                                        {"PMI_SIZE", "8"},
                                        {"RANK", "1"},
                                        {"WORLD_SIZE", "2"},
                                        {"MASTER_ADDR", "localhost"},
                                        {"MASTER_PORT", "29500"}});
  EXPECT_EQ(plan_init({}, false).rank, 1);
  EXPECT_EQ(plan_init({}, false).world_size, 2);
}

TEST(InitPlan, CallsAreCheckedAsAskedElseAsTheEnvironmentSays) {
  const EnvironmentForTest environment(
      {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCKSTEP_CHECK_CALLS", "off"}});
  EXPECT_EQ(plan_init({}, false).check_calls, false);
  EXPECT_EQ(plan_init({.check_calls = true}, false).check_calls, true);
}

}  // namespace
}  // namespace lockstep
