#include "launcher/supervise/job_agent.h"

#include <csignal>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using Phase = RendezvousState::Phase;
using Status = AgentReport::Status;
using Step = JobAgent::Step;
using Time = JobAgent::Time;

constexpr Time kBegin{};

/// An agent of two workers, and what it knows of its job of `machines`.
struct Job {
  explicit Job(int machines = 1)
      : agent({.is_on_one_machine = machines == 1, .max_restarts = 3},
              {.id = "a", .name = "a", .worker_count = 2}),
        node_count(machines) {}

  Step step(Time now = kBegin) { return agent.next_step(view, is_reached, has_trouble, now); }
  void begin() {
    ASSERT_EQ(step(), Step::kJoin);
    agent.join(view, {}, "host", 1);
    view.is_there = true;
    ASSERT_EQ(step(), Step::kWait) << "it has joined";
    begin_next();
    ASSERT_EQ(step(), Step::kStartWorkers);
    agent.begin_generation(view, kBegin);
    ASSERT_EQ(agent.report().status, Status::kRunning);
  }
  void begin_next() {
    view.phase = Phase::kRunning;
    ++view.generation;
    view.placement = NodePlacement{.node_count = node_count, .world_size = 2 * node_count};
  }
  void gather(GenerationEnd end, const std::string& cause) {
    view.phase = Phase::kGathering;
    view.placement.reset();
    view.is_there = false;
    view.end = end;
    view.cause = cause;
  }

  JobAgent agent;
  int node_count;
  AgentView view;
  bool is_reached = true;
  bool has_trouble = false;
};

WorkerExit killed(int rank) {
  return {.rank = rank, .local_rank = rank, .pid = 100 + rank, .signal = SIGKILL};
}

WorkerExit follower(int rank) {
  WorkerExit exit{.rank = rank, .local_rank = rank, .exit_code = 1, .error_message = "PeerLost: x"};
  exit.error_kind = ErrorKind::kOtherWorker;
  return exit;
}

TEST(JobAgent, JoinsOnceTheJobIsReached) {
  Job job;
  job.is_reached = false;
  EXPECT_EQ(job.step(), Step::kWait);
  job.is_reached = true;
  job.begin();
}

TEST(JobAgent, ReportsASuccessAndEndsWithTheJob) {
  Job job;
  job.begin();
  EXPECT_TRUE(job.agent.workers_ended({.exits = {{.rank = 0}, {.rank = 1}}}, job.view, kBegin));
  EXPECT_EQ(job.step(), Step::kReport);
  EXPECT_EQ(job.agent.report().status, Status::kSucceeded);
  EXPECT_EQ(job.step(), Step::kReport);
  EXPECT_EQ(job.step(), Step::kWait) << "for the other machines";
  job.view.phase = Phase::kSucceeded;
  EXPECT_EQ(job.step(), Step::kEnd);
  EXPECT_EQ(job.agent.end(), AgentEnd::kSucceeded);
  EXPECT_EQ(job.agent.exit_code(), 0);
}

TEST(JobAgent, AGenerationThatEndedMeanwhileIsNoSuccess) {
  Job job(2);
  job.begin();
  job.gather(GenerationEnd::kMachineJoined, "machine b joined");
  EXPECT_FALSE(job.agent.workers_ended({.exits = {{.rank = 0}, {.rank = 1}}}, job.view, kBegin));
  EXPECT_EQ(job.step(), Step::kReport);
  EXPECT_EQ(job.agent.report().status, Status::kIdle);
}

TEST(JobAgent, ReportsTheFirstFailureAndJoinsTheNextGeneration) {
  Job job;
  job.begin();
  EXPECT_FALSE(job.agent.workers_ended({.exits = {killed(1), follower(0)}}, job.view, kBegin));
  EXPECT_EQ(job.step(), Step::kReport) << "one machine: no other knows the cause better";
  EXPECT_EQ(job.agent.report().status, Status::kFailed);
  EXPECT_EQ(job.agent.report().generation, 1U);
  EXPECT_EQ(job.agent.report().fault.status, 128 + SIGKILL);
  EXPECT_EQ(job.step(), Step::kReport);
  job.gather(GenerationEnd::kWorkerFailed, "rank 1 failed");
  job.view.restarts = 1;
  job.agent.take_texts();
  EXPECT_EQ(job.step(), Step::kJoin);
  job.agent.join(job.view, {0}, "host", 2);
  EXPECT_EQ(job.agent.take_texts().at(0), "rank 1 failed; restart 1 of 3; rank 0 kept");
  EXPECT_EQ(job.agent.report().node.store_port, 2);
}

TEST(JobAgent, AwaitsTheReportOfAnotherMachineAfterAFollower) {
  Job job(2);
  job.begin();
  job.agent.workers_ended({.exits = {follower(0)}}, job.view, kBegin);
  EXPECT_EQ(job.step(), Step::kWait);
  EXPECT_EQ(job.agent.deadline(), kBegin + milliseconds(1'000));
  EXPECT_EQ(job.step(kBegin + milliseconds(999)), Step::kWait);
  Job other = job;
  other.gather(GenerationEnd::kWorkerFailed, "rank 3 failed");
  EXPECT_EQ(other.step(), Step::kReport) << "the generation has ended";
  EXPECT_EQ(job.step(kBegin + milliseconds(1'000)), Step::kReport);
  EXPECT_EQ(job.agent.report().status, Status::kFailed);
}

TEST(JobAgent, OnSeveralMachinesAFailureIsReportedWhileOthersRun) {
  Job job(2);
  job.begin();
  job.agent.take_report_change();
  job.agent.worker_failed(follower(0), kBegin);
  EXPECT_FALSE(job.agent.take_report_change()) << "another has failed";
  job.agent.worker_failed(killed(1), kBegin);
  EXPECT_TRUE(job.agent.take_report_change());
  EXPECT_EQ(job.agent.report().status, Status::kFailed);
  job.agent.worker_failed(killed(0), kBegin);
  EXPECT_FALSE(job.agent.take_report_change()) << "the first is the one that counts";
  Job alone;
  alone.begin();
  alone.agent.worker_failed(killed(1), kBegin);
  EXPECT_EQ(alone.agent.report().status, Status::kRunning);
}

TEST(JobAgent, ALostGroupHasThePlaceOfItsStepIfThatIsKnown) {
  for (const std::string step : {"", "60"}) {
    Job job;
    job.begin();
    job.agent.generation_over({.lost = "rank 0 left its group: x", .step = step}, job.view, kBegin);
    EXPECT_EQ(job.agent.report().status, Status::kFailed);
    EXPECT_EQ(job.agent.report().fault.place, step.empty() ? "" : "step 60");
  }
}

TEST(JobAgent, AStopBySignalAfterAFailureIsTheFailuresEnd) {
  for (const bool fails : {false, true}) {
    Job job;
    job.begin();
    job.agent.workers_ended({.exits = {killed(1)}, .stop_signal = SIGTERM}, job.view, kBegin);
    EXPECT_EQ(job.step(), Step::kReport);
    EXPECT_EQ(job.step(), Step::kReport);
    EXPECT_EQ(job.step(), Step::kWait) << "for what the failure is to the job";
    if (fails) {
      job.view.phase = Phase::kFailed;
      job.view.placement.reset();
      job.view.status = 137;
    }
    if (!fails) {
      EXPECT_EQ(job.step(kBegin + milliseconds(1'000)), Step::kReport);
    }
    EXPECT_EQ(job.step(kBegin + milliseconds(1'000)), Step::kEnd);
    EXPECT_EQ(job.agent.end(), fails ? AgentEnd::kFailed : AgentEnd::kSignal);
    EXPECT_EQ(job.agent.exit_code(), fails ? 137 : 128 + SIGTERM);
  }
}

TEST(JobAgent, WorkersThatCannotBeKilledEndTheAgent) {
  Job job;
  job.begin();
  job.agent.workers_ended({.exits = {killed(1)}, .stuck = {killed(0)}}, job.view, kBegin);
  EXPECT_EQ(job.step(), Step::kReport);
  EXPECT_EQ(job.agent.report().status, Status::kFailed) << "the failure comes first";
  EXPECT_EQ(job.step(), Step::kReport);
  EXPECT_EQ(job.agent.report().status, Status::kLeaving);
  EXPECT_EQ(job.step(), Step::kEnd);
  EXPECT_EQ(job.agent.end(), AgentEnd::kStuckWorkers);
  EXPECT_EQ(job.agent.exit_code(), 137);
}

TEST(JobAgent, APreemptionIsReportedOfAGenerationThatBeganMeanwhile) {
  Job job(2);
  job.begin();
  WorkerExit saved{.rank = 0, .exit_code = kExitPreempted};
  job.gather(GenerationEnd::kMachineJoined, "machine b joined");
  job.agent.workers_ended({.exits = {saved}}, job.view, kBegin);
  EXPECT_EQ(job.step(), Step::kReport);
  EXPECT_EQ(job.agent.report().generation, 1U);
  EXPECT_EQ(job.step(), Step::kReport);
  EXPECT_EQ(job.step(), Step::kWait) << "it joins no generation";
  job.begin_next();
  EXPECT_EQ(job.step(), Step::kReport);
  EXPECT_EQ(job.agent.report().generation, 2U);
  EXPECT_EQ(job.agent.report().status, Status::kFailed);
  job.has_trouble = true;
  EXPECT_EQ(job.step(), Step::kReport);
  EXPECT_EQ(job.step(), Step::kEnd);
  EXPECT_EQ(job.agent.end(), AgentEnd::kPreempted);
  EXPECT_EQ(job.agent.exit_code(), kExitPreempted);
}

TEST(JobAgent, ScalesFromTheNextGenerationOn) {
  Job job;
  job.begin();
  EXPECT_NE(job.agent.scale_objection(job.view, 2), "");
  EXPECT_EQ(job.agent.scale_objection(job.view, 3), "");
  job.agent.scale(3, "root");
  EXPECT_EQ(job.agent.report().node.worker_count, 3);
  EXPECT_EQ(job.agent.joined_workers(), 2);
  job.gather(GenerationEnd::kScaled, "machine a is scaled");
  job.agent.generation_over({}, job.view, kBegin);
  EXPECT_EQ(job.agent.report().status, Status::kIdle);
  EXPECT_EQ(job.step(), Step::kJoin);
  job.agent.join(job.view, {0, 1}, "host", 2);
  EXPECT_EQ(job.agent.joined_workers(), 3);
  job.agent.scale(1, "root");
  EXPECT_EQ(job.agent.report().node.worker_count, 3) << "it has joined with so many";
}

}  // namespace
}  // namespace lockstep
