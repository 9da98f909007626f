#include "tools/bench/bench_options.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using Words = std::vector<std::string>;

std::string refusal_of_bench(const Words& arguments) {
  try {
    parse_bench_options(arguments);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

BenchOptions all_reduce_options_of(Words flags) {
  flags.insert(flags.begin(), "all-reduce");
  return parse_bench_options(flags).value();
}

TEST(BenchOptions, HasDefaults) {
  const BenchOptions options = all_reduce_options_of({});
  EXPECT_EQ(options.nproc_per_node, 2);
  EXPECT_EQ(options.backends, (Words{"shm", "gloo"}));
  EXPECT_EQ(options.memory, std::vector{BenchMemory::kShared});
  EXPECT_FALSE(options.fresh);
  EXPECT_EQ(options.json, "");
}

TEST(BenchOptions, ReadsLists) {
  const BenchOptions options =
      all_reduce_options_of({"--nproc_per_node", "4", "--backends=gloo,shm", "--sizes=65536,4",
                             "--memory=private,shared", "--fresh", "--rounds=3"});
  EXPECT_EQ(options.nproc_per_node, 4);
  EXPECT_EQ(options.backends, (Words{"gloo", "shm"}));
  EXPECT_EQ(options.sizes, (std::vector<std::int64_t>{4, 65536}));
  EXPECT_EQ(options.memory, (std::vector{BenchMemory::kPrivate, BenchMemory::kShared}));
  EXPECT_TRUE(options.fresh);
  EXPECT_EQ(options.rounds, 3);
}

TEST(BenchOptions, JsonGoesToAFileOrToStdout) {
  EXPECT_EQ(all_reduce_options_of({"--json"}).json, "-");
  EXPECT_EQ(all_reduce_options_of({"--json", "--rounds=2"}).json, "-");
  EXPECT_EQ(all_reduce_options_of({"--json", "out.json"}).json, "out.json");
  EXPECT_EQ(all_reduce_options_of({"--json=out.json"}).json, "out.json");
}

TEST(BenchOptions, RefusesInOneLineThatNamesTheFlag) {
  EXPECT_NE(refusal_of_bench({}).find("all-reduce"), std::string::npos);
  EXPECT_NE(refusal_of_bench({"all-redcue"}).find("one of all-reduce, launch"), std::string::npos);
  EXPECT_NE(refusal_of_bench({"all-reduce", "--nproc-per-node=1"}).find("from 2 to"),
            std::string::npos);
  EXPECT_NE(refusal_of_bench({"all-reduce", "--sizes=6"}).find("multiple of 4"), std::string::npos);
  EXPECT_NE(refusal_of_bench({"all-reduce", "--sizes=4,,8"}).find("--sizes"), std::string::npos);
  EXPECT_NE(refusal_of_bench({"all-reduce", "--sizes=4k"}).find("'4k'"), std::string::npos);
  EXPECT_NE(refusal_of_bench({"all-reduce", "--memory=huge"}).find("shared"), std::string::npos);
  EXPECT_NE(refusal_of_bench({"all-reduce", "--backends=gloo,gloo"}).find("twice"),
            std::string::npos);
  EXPECT_NE(refusal_of_bench({"all-reduce", "--sizse=4"}).find("--sizes"), std::string::npos);
  EXPECT_NE(refusal_of_bench({"all-reduce", "gloo"}).find("gloo"), std::string::npos);
  for (const Words& wrong : {Words{"all-reduce", "--rounds=0"}, Words{"all-reduce", "--sizes=0"}}) {
    EXPECT_EQ(refusal_of_bench(wrong).find('\n'), std::string::npos);
    EXPECT_NE(refusal_of_bench(wrong), "");
  }
}

}  // namespace
}  // namespace lockstep
