#include "launcher/supervise/worker_environment.h"

#include <algorithm>
#include <map>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

std::map<std::string, std::string> environment_of(const LaunchOptions& options,
                                                  const GenerationFacts& facts, int local_rank,
                                                  const Environment& inherited = {}) {
  std::map<std::string, std::string> result;
  for (const auto& line : worker_environment(options, facts, local_rank, "/e.json", inherited)) {
    const bool is_new =
        result.emplace(line.substr(0, line.find('=')), line.substr(line.find('=') + 1)).second;
    EXPECT_TRUE(is_new) << line;
  }
  return result;
}

TEST(WorkerEnvironment, IsTorchrunsExactly) {
  LaunchOptions options;
  options.worker_count = 2;
  options.run_id = "job";
  options.role = "trainer";
  options.max_restarts = 3;
  const GenerationFacts facts{.generation = 2,
                              .placement = {.world_size = 2,
                                            .role_world_size = 2,
                                            .store_host = "127.0.0.1",
                                            .store_port = 4567},
                              .store_listen_fd = 9,
                              .allowed_cpus = 7};
  const std::map<std::string, std::string> expected = {
      {"RANK", "1"},
      {"LOCAL_RANK", "1"},
      {"GROUP_RANK", "0"},
      {"ROLE_RANK", "1"},
      {"ROLE_NAME", "trainer"},
      {"WORLD_SIZE", "2"},
      {"LOCAL_WORLD_SIZE", "2"},
      {"GROUP_WORLD_SIZE", "1"},
      {"ROLE_WORLD_SIZE", "2"},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", "4567"},
      {"TORCHELASTIC_RESTART_COUNT", "1"},
      {"TORCHELASTIC_MAX_RESTARTS", "3"},
      {"TORCHELASTIC_RUN_ID", "job"},
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
      {"TORCHELASTIC_ERROR_FILE", "/e.json"},
      {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"},
      {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
      {"OMP_NUM_THREADS", "3"},
  };
  EXPECT_EQ(environment_of(options, facts, 1), expected);
}

TEST(WorkerEnvironment, RanksCountAcrossMachines) {
  LaunchOptions options;
  options.worker_count = 3;
  const GenerationFacts facts{.placement = {.node_rank = 2,
                                            .node_count = 4,
                                            .first_rank = 5,
                                            .world_size = 11,
                                            .first_role_rank = 2,
                                            .role_world_size = 7}};
  auto values = environment_of(options, facts, 1);
  EXPECT_EQ(values["RANK"], "6");
  EXPECT_EQ(values["LOCAL_RANK"], "1");
  EXPECT_EQ(values["LOCAL_WORLD_SIZE"], "3");
  EXPECT_EQ(values["WORLD_SIZE"], "11");
  EXPECT_EQ(values["ROLE_RANK"], "3");
  EXPECT_EQ(values["ROLE_WORLD_SIZE"], "7");
  EXPECT_EQ(values["GROUP_RANK"], "2");
  EXPECT_EQ(values["GROUP_WORLD_SIZE"], "4");
}

TEST(WorkerEnvironment, TheSecretOfTheJobIsNotPassedOn) {
  EXPECT_FALSE(
      environment_of({}, {}, 0, {"LOCKSTEP_JOB_SECRET=x"}).contains("LOCKSTEP_JOB_SECRET"));
}

TEST(WorkerEnvironment, OnlyRankZeroGetsTheStoresSocket) {
  LaunchOptions options;
  options.worker_count = 2;
  const GenerationFacts facts{.store_listen_fd = 9};
  const Environment nested = {"LOCKSTEP_STORE_LISTEN_FD=5"};
  EXPECT_EQ(environment_of(options, facts, 0, nested)["LOCKSTEP_STORE_LISTEN_FD"], "9");
  EXPECT_FALSE(environment_of(options, facts, 1, nested).contains("LOCKSTEP_STORE_LISTEN_FD"));
  EXPECT_FALSE(environment_of(options, {}, 0, nested).contains("LOCKSTEP_STORE_LISTEN_FD"));
}

TEST(WorkerEnvironment, KeepsWhatIsInheritedAndOverridesTheJobs) {
  LaunchOptions options;
  options.worker_count = 2;
  auto values = environment_of(options, {}, 0,
                               {"HOME=/root", "EMPTY=", "TWO=a=b", "RANK=17",
                                "OMP_NUM_THREADS=", "TORCH_NCCL_ASYNC_ERROR_HANDLING=3"});
  EXPECT_EQ(values["HOME"], "/root");
  EXPECT_TRUE(values.contains("EMPTY"));
  EXPECT_EQ(values["TWO"], "a=b");
  EXPECT_EQ(values["RANK"], "0");
  EXPECT_EQ(values["OMP_NUM_THREADS"], "");
  EXPECT_EQ(values["TORCH_NCCL_ASYNC_ERROR_HANDLING"], "3");
}

TEST(WorkerEnvironment, SharesProcessorsAmongWorkers) {
  const auto threads = [](int worker_count, int cpus, GenerationFacts facts = {}) {
    LaunchOptions options;
    options.worker_count = worker_count;
    facts.allowed_cpus = cpus;
    auto values = environment_of(options, facts, 0);
    return values.contains("OMP_NUM_THREADS") ? values["OMP_NUM_THREADS"] : "unset";
  };
  EXPECT_EQ(threads(1, 8), "unset");
  EXPECT_EQ(threads(2, 8), "4");
  EXPECT_EQ(threads(3, 8), "2");
  EXPECT_EQ(threads(4, 2), "1");
  EXPECT_EQ(threads(1, 3, {.limited_time = true}), "3");
  EXPECT_EQ(threads(2, 8, {.processors = {{0, 1}, {2, 3}}}), "2");
}

TEST(WorkerEnvironment, VirtualLocalRankShowsOneDevice) {
  LaunchOptions options;
  options.worker_count = 2;
  options.virtual_local_rank = true;
  auto values = environment_of(options, {}, 1);
  EXPECT_EQ(values["LOCAL_RANK"], "0");
  EXPECT_EQ(values["RANK"], "1");
  EXPECT_EQ(values["CUDA_VISIBLE_DEVICES"], "1");
  EXPECT_EQ(environment_of(options, {}, 1, {"CUDA_VISIBLE_DEVICES=4,5"})["CUDA_VISIBLE_DEVICES"],
            "5");
}

}  // namespace
}  // namespace lockstep
