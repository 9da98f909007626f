#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/train/callbacks.h"

namespace lockstep {
namespace {

TEST(StepRange, IsASlice) {
  const StepRange range = StepRange::parse("10:13", "steps");
  for (int step = 1; step < 20; ++step) EXPECT_EQ(range.contains(step), 10 <= step && step <= 12);
  EXPECT_TRUE(StepRange::parse("1:2", "steps").contains(1));
}

TEST(StepRange, OtherTextIsRefused) {
  for (const char* text : {"", "10", "10:", ":13", "13:10", "10:10", "0:3", "-1:3", "10:13:2",
                           "a:b", "10 : 13", "1:99999999999999999999"}) {
    EXPECT_THROW(StepRange::parse(text, "steps"), UsageError) << text;
  }
  try {
    StepRange::parse("13", "TraceCallback: steps");
    ADD_FAILURE();
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(),
                 "TraceCallback: steps is '13'; give the first step, from 1, and the one after the "
                 "last, as in 10:13 for steps 10, 11 and 12");
  }
}

}  // namespace
}  // namespace lockstep
