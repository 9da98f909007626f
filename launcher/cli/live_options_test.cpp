#include "launcher/cli/live_options.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

TEST(LiveOptions, OfPsComeInAnyOrder) {
  const PsOptions options = parse_ps_options({"job", "-w", "--json"});
  EXPECT_EQ(options.job, "job");
  EXPECT_TRUE(options.workers);
  EXPECT_TRUE(options.json);
  EXPECT_TRUE(parse_ps_options({"-h"}).help.starts_with("Usage: lockstep ps"));
  EXPECT_THROW(parse_ps_options({"a", "b"}), UsageError);
  EXPECT_THROW(parse_ps_options({"--wrokers"}), UsageError);
}

TEST(LiveOptions, OfStopRuleEachOtherOut) {
  EXPECT_TRUE(parse_stop_options({"--now", "job"}).now);
  EXPECT_EQ(parse_stop_options({"--machine-only", "job"}).job, "job");
  EXPECT_THROW(parse_stop_options({"--now", "--machine-only"}), UsageError);
}

TEST(LiveOptions, OfLogsAreNumbers) {
  const LogsOptions options =
      parse_logs_options({"dir", "-f", "--lines=5", "--local-rank", "0,2", "--attempt=1"});
  EXPECT_EQ(options.target, "dir");
  EXPECT_TRUE(options.follow);
  EXPECT_EQ(options.choice.last_lines, 5U);
  EXPECT_EQ(options.choice.local_ranks, (std::vector<int>{0, 2}));
  EXPECT_EQ(options.choice.attempt, 1);
  EXPECT_FALSE(parse_logs_options({}).choice.last_lines);
  for (const char* wrong : {"--lines=-1", "--local-rank=0,,1", "--attempt=last"}) {
    EXPECT_THROW(parse_logs_options({wrong}), UsageError) << wrong;
  }
}

TEST(LiveOptions, OfScaleEndWithTheNumber) {
  EXPECT_EQ(parse_scale_options({"4"}).worker_count, 4);
  EXPECT_EQ(parse_scale_options({"4"}).job, "");
  const ScaleOptions options = parse_scale_options({"12", "3"});
  EXPECT_EQ(options.job, "12");
  EXPECT_EQ(options.worker_count, 3);
  EXPECT_FALSE(parse_scale_options({"--help"}).help.empty());
  for (const std::vector<std::string>& wrong :
       std::vector<std::vector<std::string>>{{},
                                             {"job"},
                                             {"job", "0"},
                                             {"job", "-1"},
                                             {"job", "x"},
                                             {"job", "5000"},
                                             {"a", "b", "3"}}) {
    EXPECT_THROW(parse_scale_options(wrong), UsageError);
  }
}

}  // namespace
}  // namespace lockstep
