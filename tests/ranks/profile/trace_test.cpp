#include "lockstep/profile/trace.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/nn/modules/linear.h>

#include "lockstep/base/error.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/os/files/temporary_directory.h"
#include "tests/ranks/ddp_fixture.h"
#include "tests/ranks/fixture.h"

namespace lockstep::testing {
namespace {

class TraceOfSteps : public DdpTest {
 protected:
  static nlohmann::json read_json(const std::filesystem::path& path) {
    std::ifstream file(path);
    return nlohmann::json::parse(file);
  }

  const TemporaryDirectory directory_{std::filesystem::temp_directory_path(), "trace-test-"};
};

TEST_F(TraceOfSteps, ShowsTheExchangeAndTheRank) {
  DistributedDataParallel model(torch::nn::Linear(50, 7), {});
  model(at::ones({2, 50})).sum().backward();
  std::filesystem::path path;
  {
    const Trace trace(directory_.path() / "trace.json");
    path = trace.path();
    model(at::ones({2, 50})).sum().backward();
    EXPECT_FALSE(std::filesystem::exists(path));
  }
  EXPECT_EQ(path, directory_.path() / ("trace.rank" + std::to_string(rank_) + ".json"));
  std::set<std::string> names;
  std::string process;
  const nlohmann::json trace = read_json(path);
  for (const auto& event : trace.at("traceEvents")) {
    names.insert(event.at("name").get<std::string>());
    if (event.at("name") == "process_name" && process.empty()) {
      process = event.at("args").at("name").get<std::string>();
    }
  }
  EXPECT_EQ(process, "rank " + std::to_string(rank_));
  const std::string bucket =
      (world_size_ == 1 ? "own gradients 0 (" : "bucket 0 (") + std::string("1.43 kB)");
  for (const std::string& range : {"lockstep::fill " + bucket, "lockstep::start " + bucket,
                                   "lockstep::wait for " + bucket, std::string("aten::addmm")}) {
    EXPECT_TRUE(names.contains(range)) << range;
  }
}

TEST_F(TraceOfSteps, OneAtATime) {
  Trace trace(directory_.path() / "trace.json");
  EXPECT_SAYS(message_of<UsageError>([&] { const Trace second("second.json"); }),
              "a profiler runs already");
  trace.finish();
  trace.finish();
  const Trace third(directory_.path() / "third.json", {.record_shapes = true});
}

TEST_F(TraceOfSteps, AFileThatCannotBeWrittenIsNamed) {
  Trace trace(directory_.path() / "none" / "trace.json");
  EXPECT_SAYS(message_of<SystemError>([&] { trace.finish(); }), "/none");
}

}  // namespace
}  // namespace lockstep::testing
