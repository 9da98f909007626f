#include "lockstep/cli/live_options.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

TEST(LiveOptions, OfPsComeInAnyOrder) {
  const PsOptions options = parse_ps_options({"job", "-w", "--json"});
  EXPECT_EQ(options.job, "job");
  EXPECT_TRUE(options.workers);
  EXPECT_TRUE(options.json);
  EXPECT_TRUE(parse_ps_options({"-h"}).help);
  EXPECT_THROW(parse_ps_options({"a", "b"}), UsageError);
  EXPECT_THROW(parse_ps_options({"--worker"}), UsageError);
}

TEST(LiveOptions, OfStopRuleEachOtherOut) {
  EXPECT_TRUE(parse_stop_options({"--now", "job"}).now);
  EXPECT_EQ(parse_stop_options({"--machine-only", "job"}).job, "job");
  EXPECT_THROW(parse_stop_options({"--now", "--machine-only"}), UsageError);
}

}  // namespace
}  // namespace lockstep
