#include "tools/estimate/estimate.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

TEST(EstimateTest, AddsUpTheMemoryOfARank) {
  const Estimate adam = estimate({.parameters = 1000, .nproc_per_node = 4});
  EXPECT_EQ(adam.rank_bytes, 4000 * 4);
  EXPECT_EQ(adam.node_bytes, 4 * 4000 * 4);
  EXPECT_EQ(adam.snapshot_bytes, 4000 * 3);
  EXPECT_EQ(adam.gradient_bytes, 4000);
  EXPECT_EQ(adam.network_bytes, 0);
  EXPECT_EQ(estimate({.parameters = 1000, .optimizer = EstimatedOptimizer::kSgd}).rank_bytes, 8000);
  EXPECT_EQ(estimate({.parameters = 1000, .optimizer = EstimatedOptimizer::kMomentum}).rank_bytes,
            12000);
}

TEST(EstimateTest, CountsShardsPrecisionAndCopies) {
  const Estimate sharded =
      estimate({.parameters = 1000, .nproc_per_node = 4, .nnodes = 2, .shard_optimizer = true});
  EXPECT_EQ(sharded.rank_bytes, 8000 + 8000 / 8);
  EXPECT_EQ(sharded.network_bytes, 4000) << "2 (n - 1) / n";
  EXPECT_EQ(sharded.snapshot_bytes, 12000) << "they are stored whole";
  const Estimate mixed = estimate({.parameters = 1000, .mixed_precision = true, .ema = true});
  EXPECT_EQ(mixed.rank_bytes, 16000 + 2000 + 4000);
  const Estimate copied =
      estimate({.parameters = 1000, .nproc_per_node = 2, .asynchronous_snapshots = true});
  EXPECT_EQ(copied.rank_bytes, 16000 + 12000);
  EXPECT_EQ(copied.node_bytes, 2 * 16000 + 12000) << "one rank writes";
}

TEST(EstimateTest, IsShownWithUnits) {
  const EstimateOptions options{.parameters = 124e6, .nproc_per_node = 8, .nnodes = 2};
  const std::string text = describe(estimate(options), options);
  EXPECT_NE(text.find("124 million parameters on 2 x 8 ranks"), std::string::npos) << text;
  EXPECT_NE(text.find("total                                           1.98 GB\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("  at 10 Gb/s                                     397 ms\n"),
            std::string::npos)
      << text;
  const auto told = nlohmann::json::parse(to_json(estimate(options), options));
  EXPECT_EQ(told["memory"]["optimizer"], 2 * 4 * 124e6);
}

TEST(EstimateTest, CountsWhatIsShownOfWeightsAndSnapshots) {
  const std::string tensors =
      R"("tensors": [{"name": "model.a", "shape": [2, 3]}, {"name": "optimizer.b", "shape": []}]})";
  EXPECT_EQ(count_parameters("{\"world_size\": 2, " + tensors, "x"), 6);
  EXPECT_EQ(count_parameters("{" + tensors, "x"), 7);
  EXPECT_THROW(count_parameters("{}", "x"), UsageError);
  EXPECT_THROW(count_parameters("", "x"), UsageError);
}

TEST(EstimateTest, NumbersOfParametersHaveSuffixes) {
  EXPECT_EQ(parse_parameter_count("85000"), 85000);
  EXPECT_EQ(parse_parameter_count("124M"), 124e6);
  EXPECT_EQ(parse_parameter_count("1.5B"), 1.5e9);
  EXPECT_EQ(parse_parameter_count("2k"), 2000);
  for (const char* text : {"", "M", "0", "-1M", "many", "1MM", "nan"}) {
    EXPECT_THROW(parse_parameter_count(text), UsageError) << text;
  }
}

}  // namespace
}  // namespace lockstep
