#include "lockstep/os/process/batch_scheduling.h"

#include <thread>

#include <gtest/gtest.h>
#include <sched.h>

namespace lockstep {
namespace {

TEST(BatchScheduling, IsInheritedAndEndsWithItsScope) {
  int within = -1;
  {
    const BatchScheduling batch;
    std::thread([&within] { within = ::sched_getscheduler(0); }).join();
  }
  EXPECT_EQ(within, SCHED_BATCH);
  EXPECT_EQ(::sched_getscheduler(0), SCHED_OTHER);
}

TEST(BatchScheduling, LeavesAnotherPolicyAlone) {
  std::thread([] {
    const sched_param parameters{};
    ASSERT_EQ(::sched_setscheduler(0, SCHED_IDLE, &parameters), 0);
    {
      const BatchScheduling batch;
      EXPECT_EQ(::sched_getscheduler(0), SCHED_IDLE);
    }
    EXPECT_EQ(::sched_getscheduler(0), SCHED_IDLE);
  }).join();
}

}  // namespace
}  // namespace lockstep
