#include "launcher/supervise/stop_sequence.h"

#include <csignal>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using std::chrono::seconds;

constexpr StopSequence::Time kStart{};

TEST(StopSequence, NothingIsPlannedWhileAllGoesWell) {
  const StopSequence stop(seconds(30));
  EXPECT_FALSE(stop.started());
  EXPECT_FALSE(stop.deadline());
}

TEST(StopSequence, AFailureTerminatesThenKillsThenGivesUp) {
  StopSequence stop(seconds(30));
  EXPECT_EQ(stop.on_failure(kStart), SIGTERM);
  EXPECT_EQ(stop.on_failure(kStart), 0) << "the second failure changes nothing";
  EXPECT_EQ(stop.deadline()->instant(), kStart + seconds(30));
  EXPECT_EQ(stop.on_deadline(kStart + seconds(30)), SIGKILL);
  EXPECT_TRUE(stop.killed());
  EXPECT_EQ(stop.deadline()->instant(), kStart + seconds(30) + StopSequence::kKilledTimeout);
  EXPECT_EQ(stop.on_deadline(kStart + seconds(40)), 0);
  EXPECT_TRUE(stop.given_up());
  EXPECT_FALSE(stop.deadline());
}

TEST(StopSequence, SignalsArePassedOnOnce) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1}) {
    StopSequence stop(seconds(30));
    EXPECT_EQ(stop.on_signal(signal, kStart), signal);
    EXPECT_EQ(stop.on_signal(SIGTERM, kStart), 0);
    EXPECT_EQ(stop.on_failure(kStart), 0);
    EXPECT_FALSE(stop.killed());
  }
}

TEST(StopSequence, ASecondInterruptKillsAtOnce) {
  StopSequence stop(seconds(30));
  EXPECT_EQ(stop.on_signal(SIGINT, kStart), SIGINT);
  EXPECT_EQ(stop.on_signal(SIGINT, kStart), SIGKILL);
  EXPECT_EQ(stop.on_signal(SIGINT, kStart), 0) << "killed once is enough";
}

TEST(StopSequence, AFirstInterruptLeavesAStopItsTime) {
  StopSequence stop(seconds(30));
  EXPECT_EQ(stop.on_failure(kStart), SIGTERM);
  EXPECT_EQ(stop.on_signal(SIGINT, kStart), 0);
  EXPECT_EQ(stop.on_signal(SIGINT, kStart), SIGKILL);
}

TEST(StopSequence, NoTimeMeansKill) {
  StopSequence failure(seconds(0));
  EXPECT_EQ(failure.on_failure(kStart), SIGKILL);
  StopSequence signal(seconds(0));
  EXPECT_EQ(signal.on_signal(SIGTERM, kStart), SIGKILL);
}

TEST(StopSequence, WorkersCanBeKilledWhenTheyWereToldToEnd) {
  StopSequence stop(seconds(30));
  EXPECT_EQ(stop.on_failure(kStart), SIGTERM);
  EXPECT_EQ(stop.on_kill(kStart), SIGKILL);
  EXPECT_EQ(stop.on_kill(kStart), 0);
  EXPECT_EQ(stop.deadline()->instant(), kStart + StopSequence::kKilledTimeout);
  EXPECT_EQ(StopSequence(seconds(30)).on_kill(kStart), SIGKILL);
}

}  // namespace
}  // namespace lockstep
