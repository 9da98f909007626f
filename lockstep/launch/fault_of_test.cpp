#include "lockstep/launch/fault_of.h"

#include <csignal>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;

std::string place(const WorkerExit& exit, seconds after = seconds(1)) {
  return fault_of(exit, "", after).place;
}

TEST(FaultOf, SaysWhoWhereAndHow) {
  const WorkerFault fault =
      fault_of({.rank = 3, .local_rank = 1, .pid = 42, .exit_code = 7}, " on host", seconds(1));
  EXPECT_EQ(fault.text, "rank 3 (local rank 1, pid 42) on host failed: exit code 7");
  EXPECT_EQ(fault.status, 7);
}

TEST(FaultOf, AReportedErrorIsThePlaceForMinutes) {
  const WorkerExit exit{.rank = 2, .exit_code = 1, .error_message = "ValueError: bad"};
  EXPECT_EQ(place(exit), "rank 2: ValueError: bad");
  EXPECT_EQ(place(exit, minutes(9)), "rank 2: ValueError: bad");
  EXPECT_EQ(place(exit, minutes(10)), "");
}

TEST(FaultOf, ACrashIsWhereItWasInItsFilesWhateverTheAddresses) {
  WorkerExit exit{.signal = SIGSEGV, .error_message = "killed by SIGSEGV at address 0x7f01"};
  exit.crash = CrashReport{.frames = {{.module = "/train", .offset = 18}}};
  EXPECT_EQ(place(exit), "rank 0: signal 11 /train+18");
}

TEST(FaultOf, OneThatGivesUpIsTheLast) {
  EXPECT_TRUE(fault_of({.exit_code = 1, .gives_up = true}, "", seconds(1)).is_final);
  EXPECT_FALSE(fault_of({.exit_code = 1}, "", seconds(1)).is_final);
}

TEST(FaultOf, AnExitCodeOrCrashIsThePlaceSoonAfterTheStart) {
  EXPECT_EQ(place({.rank = 1, .exit_code = 3}), "rank 1: exit code 3");
  EXPECT_EQ(place({.rank = 1, .exit_code = 3}, seconds(31)), "");
  EXPECT_EQ(place({.rank = 1, .signal = SIGABRT}), "rank 1: killed by SIGABRT");
}

TEST(FaultOf, WantOfMemoryIsAPlace) {
  EXPECT_EQ(place({.signal = SIGKILL, .memory_shortage = "its cgroup has 512 MB"}),
            "rank 0: its cgroup has 512 MB");
}

TEST(FaultOf, OneThatWasPreemptedHasNoPlace) {
  const WorkerFault fault = fault_of({.rank = 1, .pid = 42, .exit_code = 75}, "", seconds(1));
  EXPECT_TRUE(is_preemption(fault.text));
  EXPECT_EQ(fault.place, "");
  EXPECT_EQ(fault.status, 75);
}

TEST(FaultOf, WhatSomebodyElseHasCausedHasNoPlace) {
  EXPECT_EQ(place({.signal = SIGKILL}), "");
  EXPECT_EQ(place({.signal = SIGTERM}), "");
  EXPECT_EQ(place({.exit_code = 1, .error_message = "PeerLost: rank 1 ended"}), "");
}

}  // namespace
}  // namespace lockstep
