#include "lockstep/os/process/process_usage.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace lockstep {
namespace {

TEST(ProcessUsage, IsReadFromStat) {
  const auto usage = parse_process_stat(
      "4711 (a (strange) name) S 1 2 3 4 5 6 7 8 9 10 150 50 13 14 20 0 1 0 18 19000 25 99", 100,
      4096);
  ASSERT_TRUE(usage);
  EXPECT_DOUBLE_EQ(usage->cpu_seconds, 2.0);
  EXPECT_EQ(usage->resident_bytes, 25U * 4096U);
}

TEST(ProcessUsage, OfAnythingElseIsNone) {
  EXPECT_FALSE(parse_process_stat("", 100, 4096));
  EXPECT_FALSE(parse_process_stat("4711 (name) S 1 2", 100, 4096));
  EXPECT_FALSE(process_usage(0));
}

TEST(ProcessUsage, OfThisProcessIsPlausible) {
  const auto usage = process_usage(::getpid());
  ASSERT_TRUE(usage);
  EXPECT_GT(usage->resident_bytes, 100'000U);
}

}  // namespace
}  // namespace lockstep
