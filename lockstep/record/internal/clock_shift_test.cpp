#include <gtest/gtest.h>

#include "lockstep/record/internal/trace_merge.h"

namespace lockstep {
namespace {

TEST(ClockShift, NoneWhereTheClocksAgreeWithTheMeetings) {
  EXPECT_EQ(clock_shift_us({}, {}), 0);
  EXPECT_EQ(clock_shift_us({{0, 10}}, {}), 0);
  EXPECT_EQ(clock_shift_us({{0, 10}, {20, 25}}, {{8, 11}, {21, 26}}), 0);
}

TEST(ClockShift, WhatMeetingsForbidIsPutRight) {
  // Rank 1's clock is ahead: by 998 at least, as it began to meet before rank 0 ended, and by 1006
  // at most.
  EXPECT_DOUBLE_EQ(clock_shift_us({{0, 10}, {20, 25}}, {{1008, 1011}, {1021, 1026}}), -1002);
  EXPECT_DOUBLE_EQ(clock_shift_us({{1000, 1010}}, {{0, 10}}), 1000);
  // A clock that has been set in between: the best that one number can do.
  EXPECT_DOUBLE_EQ(clock_shift_us({{0, 1}, {100, 101}}, {{50, 51}, {250, 251}}), -100);
}

}  // namespace
}  // namespace lockstep
