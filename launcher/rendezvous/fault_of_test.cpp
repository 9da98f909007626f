#include "launcher/rendezvous/fault_of.h"

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
  EXPECT_EQ(fault.text, "rank 3 (local rank 1, pid 42) on host exited with code 7");
  EXPECT_EQ(fault.status, 7);
}

TEST(FaultOf, AReportedErrorIsThePlaceForMinutes) {
  const WorkerExit exit{.rank = 2, .exit_code = 1, .error_message = "ValueError: bad"};
  EXPECT_EQ(place(exit), ": ValueError: bad");
  EXPECT_EQ(place(exit, minutes(9)), ": ValueError: bad");
  EXPECT_EQ(place(exit, minutes(10)), "");
}

TEST(FaultOf, ACrashIsWhereItWasInItsFilesWhateverTheAddresses) {
  WorkerExit exit{.signal = SIGSEGV, .error_message = "killed by SIGSEGV at address 0x7f01"};
  exit.crash = CrashReport{.frames = {{.module = "/train", .offset = 18}}};
  EXPECT_EQ(place(exit), ": signal 11 /train+18");
}

TEST(FaultOf, TheSameErrorIsTheSamePlaceWhicheverRankHasIt) {
  const auto fails = [](int rank, const std::string& step, const std::string& error) {
    return place({.rank = rank, .exit_code = 1, .error_message = error, .step = step});
  };
  EXPECT_EQ(fails(0, "", "SystemError: open digits.csv"),
            fails(12, "", "SystemError: open digits.csv"));
  EXPECT_EQ(fails(0, "7", "Error: loss on rank 0 (pid 4711) is NaN; rank 0 ends"),
            fails(12, "7", "Error: loss on rank 12 (pid 9) is NaN; rank 12 ends"));
  EXPECT_NE(fails(0, "7", "Error: bad"), fails(0, "8", "Error: bad"));
  EXPECT_NE(fails(0, "", "Error: column 1"), fails(0, "", "Error: column 2"));
}

TEST(FaultOf, OneThatGivesUpIsTheLast) {
  EXPECT_TRUE(fault_of({.exit_code = 1, .cannot_recover = true}, "", seconds(1)).is_final);
  EXPECT_FALSE(fault_of({.exit_code = 1}, "", seconds(1)).is_final);
}

TEST(FaultOf, AnExitCodeOrCrashIsThePlaceSoonAfterTheStart) {
  EXPECT_EQ(place({.rank = 1, .exit_code = 3}), ": exit code 3");
  EXPECT_EQ(place({.rank = 1, .exit_code = 3}, seconds(31)), "");
  EXPECT_EQ(place({.rank = 1, .signal = SIGABRT}), ": killed by SIGABRT");
}

TEST(FaultOf, WantOfMemoryIsAPlace) {
  EXPECT_EQ(place({.signal = SIGKILL, .memory_shortage = "its cgroup has 512 MB"}),
            ": its cgroup has 512 MB");
}

TEST(FaultOf, OneThatWasPreemptedHasNoPlace) {
  const WorkerFault fault = fault_of({.rank = 1, .pid = 42, .exit_code = 75}, "", seconds(1));
  EXPECT_TRUE(fault.text.starts_with("preempted: ")) << fault.text;
  EXPECT_EQ(fault.place, "");
  EXPECT_EQ(fault.status, 75);
}

TEST(FaultOf, WhatSomebodyElseHasCausedHasNoPlace) {
  EXPECT_EQ(place({.signal = SIGKILL}), "");
  EXPECT_EQ(place({.signal = SIGTERM}), "");
  EXPECT_EQ(place({.exit_code = 1,
                   .error_message = "PeerLost: rank 1 ended",
                   .error_kind = ErrorKind::kOtherWorker}),
            "");
}

}  // namespace
}  // namespace lockstep
