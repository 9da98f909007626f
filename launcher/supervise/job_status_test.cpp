#include "launcher/supervise/job_status.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using State = JobStatus::State;

JobStatus judged(JobStatus status, const std::string& trouble = "",
                 std::optional<GenerationEnd> failure = {}) {
  judge_health(status, trouble, failure);
  return status;
}

TEST(JobHealth, SaysSinceWhenWorkersRun) {
  const JobStatus status =
      judged({.state = State::kRunning, .generation = 3, .workers_seconds = 12.9});
  EXPECT_TRUE(status.is_healthy);
  EXPECT_EQ(status.health, "running; generation 3, workers run for 12 s");
}

TEST(JobHealth, SaysWhomTheJobWaitsFor) {
  const JobStatus status = judged({.missing = "1 of 2 machines joined"});
  EXPECT_TRUE(status.is_healthy);
  EXPECT_EQ(status.health, "gathering: 1 of 2 machines joined");
}

TEST(JobHealth, IsBadWhileTheRendezvousIsNotReached) {
  const JobStatus status = judged({.state = State::kRunning}, "no answer");
  EXPECT_FALSE(status.is_healthy);
  EXPECT_EQ(status.health, "cut off from the rendezvous: no answer");
}

TEST(JobHealth, IsBadOnceTheJobHasFailed) {
  const JobStatus status = judged({.state = State::kStopping, .cause = "rank 1 failed"}, "",
                                  GenerationEnd::kWorkerFailed);
  EXPECT_FALSE(status.is_healthy);
  EXPECT_EQ(status.health, "job failed: rank 1 failed");
}

TEST(JobHealth, AStopIsNoFailureOfTheJob) {
  const JobStatus status =
      judged({.state = State::kStopping, .cause = "stopped by root"}, "", GenerationEnd::kStopped);
  EXPECT_FALSE(status.is_healthy);
  EXPECT_EQ(status.health, "job stopped by root");
}

TEST(JobHealth, NamesWorkersThatCannotBeKilled) {
  const JobStatus status =
      judged({.workers = {{.rank = 1, .pid = 7, .state = WorkerStatus::State::kStuck},
                          {.rank = 2, .pid = 8},
                          {.rank = 3, .pid = 9, .state = WorkerStatus::State::kStuck}}},
             "no answer", GenerationEnd::kWorkerFailed);
  EXPECT_FALSE(status.is_healthy);
  EXPECT_EQ(status.health, "workers cannot be killed: rank 1 (pid 7), rank 3 (pid 9)");
}

TEST(JobStates, HaveNames) {
  for (int i = 0; i <= static_cast<int>(State::kFailed); ++i) {
    const auto state = static_cast<State>(i);
    EXPECT_EQ(job_state_named(name_of(state)), state);
  }
  for (int i = 0; i <= static_cast<int>(WorkerStatus::State::kStuck); ++i) {
    const auto state = static_cast<WorkerStatus::State>(i);
    EXPECT_EQ(worker_state_named(name_of(state)), state);
  }
  EXPECT_FALSE(job_state_named("sleeping"));
}

}  // namespace
}  // namespace lockstep
