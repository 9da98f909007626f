#include "lockstep/comm/init_plan.h"

#include <cstdlib>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// Sets exactly these variables of the launcher's for the length of a test.
class LauncherEnvironment {
 public:
  explicit LauncherEnvironment(const std::map<std::string, std::string>& values) {
    clear();
    for (const auto& [name, value] : values) ::setenv(name.c_str(), value.c_str(), 1);
  }
  ~LauncherEnvironment() { clear(); }

 private:
  static void clear() {
    for (const char* name : {"RANK",
                             "WORLD_SIZE",
                             "LOCAL_RANK",
                             "LOCAL_WORLD_SIZE",
                             "MASTER_ADDR",
                             "MASTER_PORT",
                             "TORCHELASTIC_RESTART_COUNT",
                             "TORCHELASTIC_USE_AGENT_STORE",
                             "LOCKSTEP_STORE_LISTEN_FD",
                             "OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK",
                             "OMPI_COMM_WORLD_LOCAL_SIZE",
                             "PMI_RANK",
                             "PMI_SIZE",
                             "MPI_LOCALRANKID",
                             "MPI_LOCALNRANKS",
                             "SLURM_PROCID",
                             "SLURM_STEP_NUM_TASKS",
                             "SLURM_LOCALID",
                             "LOCKSTEP_CHECK_CALLS",
                             "LOCKSTEP_TIMEOUT_S",
                             "LOCKSTEP_INIT_TIMEOUT_S",
                             "LOCKSTEP_BACKEND"}) {
      ::unsetenv(name);
    }
  }
};

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
  const LauncherEnvironment environment({});
  const InitPlan plan = plan_init({}, false);
  EXPECT_EQ(plan.world_size, 1);
  EXPECT_EQ(plan.rank, 0);
  EXPECT_EQ(plan.store, InitPlan::Store::kNone);
}

TEST(InitPlan, ReadsWhatTheLauncherSet) {
  const LauncherEnvironment environment({{"RANK", "0"},
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

TEST(InitPlan, ALauncherThatServesTheStoreLeavesNothingToServe) {
  const LauncherEnvironment environment({{"RANK", "0"},
                                         {"WORLD_SIZE", "2"},
                                         {"MASTER_ADDR", "localhost"},
                                         {"MASTER_PORT", "1"},
                                         {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  EXPECT_FALSE(plan_init({}, false).serves_store);
}

TEST(InitPlan, ArgumentsBeatTheEnvironment) {
  const LauncherEnvironment environment({{"RANK", "0"},
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
  const LauncherEnvironment environment({});
  const InitPlan file =
      plan_init({.init_method = "file:///tmp/x/y", .rank = 1, .world_size = 2}, false);
  EXPECT_EQ(file.path, "/tmp/x/y");
  EXPECT_EQ(file.store, InitPlan::Store::kFile);
  EXPECT_EQ(plan_init({.rank = 1, .world_size = 2}, true).store, InitPlan::Store::kGiven);
}

TEST(InitPlan, RefusesWhatCannotWorkAndNamesIt) {
  const LauncherEnvironment environment({});
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

TEST(InitPlan, TakesThePlacesThatMpirunGaveOut) {
  for (const std::map<std::string, std::string>& launcher :
       {std::map<std::string, std::string>{{"OMPI_COMM_WORLD_RANK", "1"},
                                           {"OMPI_COMM_WORLD_SIZE", "4"},
                                           {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}},
        {{"PMI_RANK", "1"},
         {"PMI_SIZE", "4"},
         {"MPI_LOCALRANKID", "1"},
         {"MPI_LOCALNRANKS", "4"}}}) {
    const LauncherEnvironment environment(launcher);
    const InitPlan plan = plan_init({}, false);
    EXPECT_EQ(plan.rank, 1);
    EXPECT_EQ(plan.world_size, 4);
    EXPECT_EQ(plan.local_rank, 1);
    EXPECT_EQ(plan.local_world_size, 4);
    EXPECT_EQ(plan.store, InitPlan::Store::kMpi);
    EXPECT_TRUE(plan.one_machine);
    EXPECT_FALSE(plan.serves_store);
  }
}

TEST(InitPlan, ARankOfSrunDoesNotKnowHowManyShareItsMachine) {
  const LauncherEnvironment environment(
      {{"SLURM_PROCID", "3"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_LOCALID", "1"}});
  const InitPlan plan = plan_init({}, false);
  EXPECT_EQ(plan.rank, 3);
  EXPECT_EQ(plan.local_rank, 1);
  EXPECT_FALSE(plan.one_machine);
}

TEST(InitPlan, RanksOfMpirunMeetAtAnAddressThatIsGiven) {
  const LauncherEnvironment environment({{"PMI_RANK", "0"},
                                         {"PMI_SIZE", "2"},
                                         {"MASTER_ADDR", "10.0.0.7"},
                                         {"MASTER_PORT", "29500"}});
  const InitPlan plan = plan_init({}, false);
  EXPECT_EQ(plan.store, InitPlan::Store::kTcp);
  EXPECT_EQ(plan.host, "10.0.0.7");
  EXPECT_TRUE(plan.serves_store);
}

TEST(InitPlan, OneProcessUnderMpirunMeetsNobody) {
  const LauncherEnvironment environment({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}});
  EXPECT_EQ(plan_init({}, false).store, InitPlan::Store::kNone);
}

TEST(InitPlan, RanksGivenByALauncherOfOursCountMoreThanMpis) {
  const LauncherEnvironment environment({{"PMI_RANK", "0"},
                                         {"PMI_SIZE", "8"},
                                         {"RANK", "1"},
                                         {"WORLD_SIZE", "2"},
                                         {"MASTER_ADDR", "localhost"},
                                         {"MASTER_PORT", "29500"}});
  EXPECT_EQ(plan_init({}, false).rank, 1);
  EXPECT_EQ(plan_init({}, false).world_size, 2);
}

TEST(InitPlan, CallsAreCheckedAsAskedElseAsTheEnvironmentSays) {
  const LauncherEnvironment environment(
      {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCKSTEP_CHECK_CALLS", "off"}});
  EXPECT_EQ(plan_init({}, false).check_calls, false);
  EXPECT_EQ(plan_init({.check_calls = true}, false).check_calls, true);
}

}  // namespace
}  // namespace lockstep
