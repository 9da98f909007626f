#include "launcher/rendezvous/rendezvous_state.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep {
namespace {

using Ids = std::vector<std::string>;
using Phase = RendezvousState::Phase;
using TimerKind = RendezvousTimer::Kind;

RendezvousNode node(const std::string& id, int worker_count = 1) {
  return {.id = id, .name = "host of " + id, .worker_count = worker_count};
}

Ids ids(const std::vector<RendezvousNode>& nodes) {
  Ids result;
  for (const RendezvousNode& each : nodes) result.push_back(each.id);
  return result;
}

// Applies events one after another.
struct Job {
  RendezvousRules rules;
  RendezvousState state{};

  void join(const std::string& id, int worker_count = 1) {
    state = lockstep::join(state, rules, node(id, worker_count));
  }
  void remove(const std::string& id) { state = lockstep::remove(state, rules, id, "left"); }
  void fail(const std::string& id, const WorkerFault& fault) {
    state = worker_failed(state, rules, id, state.generation, fault);
  }
  void succeed(const std::string& id) { state = workers_succeeded(state, id, state.generation); }
  void time_out() { state = timed_out(state, rules, timer_of(state, rules).value()); }
  AgentAction action(const std::string& id, std::optional<std::uint64_t> running = {},
                     std::uint64_t done = 0) const {
    return next_action(view_of(state, id), running, done);
  }
};

Job running_job(RendezvousRules rules, const Ids& members) {
  Job job{rules};
  for (const std::string& id : members) job.join(id);
  if (job.state.phase == Phase::kGathering) job.time_out();
  return job;
}

TEST(RendezvousStateTest, ARoundRunsWhenAllAreThere) {
  Job job{{.min_nodes = 2, .max_nodes = 2}};
  EXPECT_EQ(job.action("a"), AgentAction::kJoin);
  job.join("a", 4);
  EXPECT_EQ(job.action("a"), AgentAction::kWait);
  EXPECT_EQ(timer_of(job.state, job.rules)->kind, TimerKind::kJoin);
  job.join("a", 4);  // again: the answer was lost
  job.join("b", 3);
  EXPECT_EQ(job.state.phase, Phase::kRunning);
  EXPECT_EQ(job.state.generation, 1U);
  EXPECT_EQ(timer_of(job.state, job.rules), std::nullopt);
  const NodePlacement first{.node_rank = 0,
                            .node_count = 2,
                            .first_rank = 0,
                            .world_size = 7,
                            .first_role_rank = 0,
                            .role_world_size = 7};
  EXPECT_EQ(placement_of(job.state, "a"), first);
  EXPECT_EQ(placement_of(job.state, "b")->first_rank, 4);
  EXPECT_EQ(placement_of(job.state, "c"), std::nullopt);
  EXPECT_EQ(job.action("b"), AgentAction::kStartWorkers);
  EXPECT_EQ(job.action("b", 1), AgentAction::kWait);
}

TEST(RendezvousStateTest, TheLastCallStartsWithFewerThanMost) {
  Job job{{.min_nodes = 2, .max_nodes = 4}};
  job.join("a");
  job.join("b");
  EXPECT_EQ(job.state.phase, Phase::kGathering);
  const RendezvousTimer last_call = timer_of(job.state, job.rules).value();
  EXPECT_EQ(last_call.kind, TimerKind::kLastCall);
  job.join("c");
  EXPECT_EQ(timer_of(job.state, job.rules), last_call) << "a newcomer does not put it off";
  job.time_out();
  EXPECT_EQ(ids(job.state.nodes), Ids({"a", "b", "c"}));
  const RendezvousState before = job.state;
  job.state = timed_out(job.state, job.rules, last_call);
  EXPECT_EQ(job.state, before) << "a timer of an earlier gathering";
}

TEST(RendezvousStateTest, TooFewNodesFailTheJobByName) {
  Job job{{.min_nodes = 3, .max_nodes = 3}};
  job.join("a");
  job.join("b");
  job.time_out();
  EXPECT_EQ(job.state.phase, Phase::kFailed);
  EXPECT_EQ(job.state.cause,
            "2 of at least 3 machines joined in time: host of a, host of b; start the others, or "
            "give them longer with "
            "--rdzv-conf=join_timeout=SECONDS");
  job.join("c");
  EXPECT_EQ(job.action("c"), AgentAction::kEnd);
}

TEST(RendezvousStateTest, AFailedWorkerEndsTheRoundEverywhere) {
  Job job = running_job({.min_nodes = 2, .max_nodes = 2, .max_restarts = 1}, {"a", "b"});
  job.fail("b", {.text = "rank 1: killed by SIGKILL"});
  EXPECT_EQ(job.state.phase, Phase::kGathering);
  EXPECT_EQ(job.action("a", 1), AgentAction::kStopWorkers);
  EXPECT_EQ(job.action("a"), AgentAction::kJoin);
  job.fail("a", {.text = "rank 0: exit code 1"});  // what followed, of the same generation
  EXPECT_EQ(job.state.restarts, 1);
  job.join("b");
  job.join("a");
  EXPECT_EQ(job.state.generation, 2U);
  EXPECT_EQ(ids(job.state.nodes), Ids({"a", "b"})) << "they keep their places";
  job.fail("a", {.text = "rank 0: exit code 3"});
  EXPECT_EQ(job.state.phase, Phase::kFailed);
  EXPECT_EQ(job.state.cause, "rank 0: exit code 3");
  EXPECT_EQ(job.action("b", 2), AgentAction::kStopWorkers);
  EXPECT_EQ(job.action("b"), AgentAction::kEnd);
}

TEST(RendezvousStateTest, AFailureOfAnEarlierGenerationIsNone) {
  Job job = running_job({.min_nodes = 1, .max_nodes = 2, .max_restarts = 1}, {"a", "b"});
  job.remove("b");
  job.join("a");
  EXPECT_EQ(job.state.generation, 2U);
  const RendezvousState before = job.state;
  job.state = worker_failed(job.state, job.rules, "a", 1, {.text = "rank 0: exit code 1"});
  job.state = workers_succeeded(job.state, "a", 1);
  EXPECT_EQ(job.state, before);
}

TEST(RendezvousStateTest, AHangThatIsFoundInTheNextGenerationIsNoSecondRestart) {
  const WorkerFault lost{.text = "rank 0 left its group"};
  Job job = running_job({.min_nodes = 2, .max_nodes = 2, .max_restarts = 1}, {"a", "b"});
  job.fail("a", lost);
  job.join("a");
  job.join("b");
  ASSERT_EQ(job.state.generation, 2U);
  job.fail("b", {.text = "rank 1 did not join", .is_hang = true, .silent_since = 1});
  EXPECT_EQ(job.state.phase, Phase::kGathering) << "it hung since before the restart";
  EXPECT_EQ(job.state.restarts, 1);
  job.join("a");
  job.join("b");
  ASSERT_EQ(job.state.generation, 3U);
  job.fail("b", {.text = "rank 1 did not join", .is_hang = true, .silent_since = 2});
  EXPECT_EQ(job.state.phase, Phase::kFailed) << "no restart was counted after generation 2";
}

TEST(RendezvousStateTest, AHangSinceAGenerationThatDidNotFailIsARestart) {
  Job job = running_job({.min_nodes = 1, .max_nodes = 2, .max_restarts = 1}, {"a", "b"});
  job.remove("b");
  job.join("a");
  ASSERT_EQ(job.state.generation, 2U);
  job.fail("a", {.text = "rank 0 did not join", .is_hang = true, .silent_since = 1});
  EXPECT_EQ(job.state.restarts, 1);
}

TEST(RendezvousStateTest, AJobThatMadeRoomIsNotStartedAgain) {
  Job job = running_job({.min_nodes = 1, .max_nodes = 1, .max_restarts = 100}, {"a"});
  job.fail("a", {.text = "preempted: rank 0 has saved", .status = kExitPreempted});
  EXPECT_EQ(job.state.phase, Phase::kFailed);
  EXPECT_EQ(job.state.fault.status, kExitPreempted);
  EXPECT_EQ(job.state.end, GenerationEnd::kPreempted);
}

TEST(RendezvousStateTest, AMemberCanMakeRoomBetweenGenerations) {
  const WorkerFault room{.text = "preempted: rank 0 has saved", .status = kExitPreempted};
  Job job = running_job({.min_nodes = 2, .max_nodes = 2, .max_restarts = 100}, {"a", "b"});
  job.remove("b");
  job.join("a");
  ASSERT_EQ(job.state.phase, Phase::kGathering);
  const RendezvousState before = job.state;
  for (const auto& [id, generation] : {std::pair("c", 1), std::pair("a", 0)}) {
    job.state =
        worker_failed(job.state, job.rules, id, static_cast<std::uint64_t>(generation), room);
    EXPECT_EQ(job.state, before) << "no member, or of a generation before";
  }
  job.fail("a", {.text = "rank 0: exit code 1"});
  EXPECT_EQ(job.state, before) << "its worker is replaced in the next generation";
  job.fail("a", room);
  EXPECT_EQ(job.state.phase, Phase::kFailed);
  EXPECT_EQ(job.state.end, GenerationEnd::kPreempted);
}

TEST(RendezvousStateTest, MembersAreToldThatAWorkerHangsUntilTheNextRound) {
  Job job = running_job({.min_nodes = 2, .max_nodes = 2, .max_restarts = 100}, {"a", "b"});
  job.fail("a", {.text = "rank 0 waits in vain", .is_hang = true});
  EXPECT_TRUE(view_of(job.state, "b").is_hang);
  job.join("a");
  EXPECT_TRUE(view_of(job.state, "b").is_hang);
  job.join("b");
  EXPECT_FALSE(view_of(job.state, "b").is_hang);
  job.remove("a");
  EXPECT_FALSE(view_of(job.state, "b").is_hang) << "the last generation ended otherwise";
}

TEST(RendezvousStateTest, TheSameFaultAtTheSamePlaceEndsTheJob) {
  Job job = running_job({.min_nodes = 1, .max_nodes = 1, .max_restarts = 100}, {"a"});
  const auto fail_at = [&](const std::string& place) {
    job.fail("a", {.text = "rank 0: killed by SIGSEGV", .place = place});
    job.join("a");
  };
  for (const char* place : {"step 7", "step 7", "step 8", "", "", "", "step 7", "step 7"}) {
    fail_at(place);
    ASSERT_EQ(job.state.phase, Phase::kRunning) << place;
  }
  fail_at("step 7");
  EXPECT_EQ(job.state.phase, Phase::kFailed);
  EXPECT_EQ(job.state.cause,
            "rank 0: killed by SIGSEGV; no restart: same failure 3 times in a row");
}

TEST(RendezvousStateTest, ALostNodeIsReplacedByOneThatWaits) {
  Job job = running_job({.min_nodes = 2, .max_nodes = 2}, {"a", "b"});
  job.join("c");
  EXPECT_EQ(job.state.phase, Phase::kRunning) << "there is no room for it";
  EXPECT_EQ(job.action("c"), AgentAction::kWait);
  job.remove("a");
  EXPECT_EQ(job.state.phase, Phase::kGathering) << "b has to stop its workers first";
  job.join("b");
  EXPECT_EQ(ids(job.state.nodes), Ids({"b", "c"}));
  EXPECT_EQ(job.state.restarts, 0) << "a change of membership is free";
}

TEST(RendezvousStateTest, TheRestGoesOnAtOnceWhenTheyAreEnough) {
  Job job = running_job({.min_nodes = 1, .max_nodes = 3}, {"a", "b", "c"});
  job.remove("b");
  job.join("c");
  EXPECT_EQ(job.state.phase, Phase::kGathering) << "a is alive";
  job.join("a");
  EXPECT_EQ(job.state.phase, Phase::kRunning) << "without a last call";
  EXPECT_EQ(ids(job.state.nodes), Ids({"a", "c"}));
}

TEST(RendezvousStateTest, OneThatIsSlowToStopItsWorkersIsNotLeftBehind) {
  Job job = running_job({.min_nodes = 1, .max_nodes = 2}, {"a"});
  job.join("b");
  EXPECT_EQ(timer_of(job.state, job.rules), std::nullopt)
      << "the two would start without each other in turn";
  job.join("a");
  EXPECT_EQ(ids(job.state.nodes), Ids({"a", "b"}));
}

TEST(RendezvousStateTest, OneThatDiesBeforeItJoinsAgainIsNotWaitedFor) {
  Job job = running_job({.min_nodes = 1, .max_nodes = 2, .max_restarts = 1}, {"a", "b"});
  job.fail("a", {.text = "rank 0: exit code 1"});
  job.join("a");
  job.remove("b");
  EXPECT_EQ(job.state.phase, Phase::kRunning);
  EXPECT_EQ(ids(job.state.nodes), Ids({"a"}));
}

TEST(RendezvousStateTest, TooFewAfterALossWaitForAnother) {
  Job job = running_job({.min_nodes = 2, .max_nodes = 2}, {"a", "b"});
  job.remove("a");
  job.join("b");
  EXPECT_EQ(job.state.phase, Phase::kGathering);
  EXPECT_EQ(timer_of(job.state, job.rules)->kind, TimerKind::kJoin);
  job.join("c");
  EXPECT_EQ(ids(job.state.nodes), Ids({"b", "c"}));
}

TEST(RendezvousStateTest, ANewNodeIsTakenInWhereThereIsRoom) {
  Job job = running_job({.min_nodes = 1, .max_nodes = 3}, {"a"});
  job.join("b");
  EXPECT_EQ(job.action("a", 1), AgentAction::kStopWorkers);
  job.join("a");
  EXPECT_EQ(job.state.phase, Phase::kRunning);
  EXPECT_EQ(ids(job.state.nodes), Ids({"a", "b"}));
}

TEST(RendezvousStateTest, ANodeThatWasGivenUpIsFenced) {
  Job job = running_job({.min_nodes = 1, .max_nodes = 2}, {"a", "b"});
  job.remove("b");
  job.join("a");
  // It was only cut off, and its workers still run.
  EXPECT_EQ(job.action("b", 1), AgentAction::kStopWorkers);
  EXPECT_EQ(job.action("b"), AgentAction::kJoin);
}

TEST(RendezvousStateTest, TheJobSucceedsWhenAllHave) {
  Job job = running_job({.min_nodes = 2, .max_nodes = 2}, {"a", "b"});
  job.succeed("a");
  job.succeed("a");
  EXPECT_EQ(job.state.phase, Phase::kRunning);
  EXPECT_EQ(job.action("a", {}, 1), AgentAction::kWait);
  job.succeed("b");
  EXPECT_EQ(job.state.phase, Phase::kSucceeded);
  EXPECT_EQ(job.action("a", {}, 1), AgentAction::kEnd);
  const RendezvousState before = job.state;
  job.remove("a");
  job.join("c");
  EXPECT_EQ(job.state, before);
}

TEST(RendezvousStateTest, OneThatHadSucceededRunsAgainWithTheOthers) {
  Job job = running_job({.min_nodes = 2, .max_nodes = 2, .max_restarts = 1}, {"a", "b"});
  job.succeed("a");
  job.fail("b", {.text = "rank 1: exit code 1"});
  EXPECT_EQ(job.action("a", {}, 1), AgentAction::kJoin);
  job.join("a");
  job.join("b");
  EXPECT_TRUE(job.state.succeeded.empty());
  EXPECT_EQ(job.action("a", {}, 1), AgentAction::kStartWorkers);
}

TEST(RendezvousStateTest, MoreThanMostWait) {
  Job job{{.min_nodes = 1, .max_nodes = 2}};
  for (const char* id : {"a", "b", "c"}) job.join(id);
  EXPECT_EQ(ids(job.state.nodes), Ids({"a", "b"}));
  EXPECT_EQ(ids(job.state.waiting), Ids({"c"}));
  job.remove("c");
  EXPECT_EQ(ids(job.state.waiting), Ids());
  EXPECT_EQ(job.state.phase, Phase::kRunning);
}

TEST(RendezvousStateTest, AJobThatIsStoppedFailsAsIfBySigterm) {
  Job job = running_job({.max_nodes = 2, .max_restarts = 5}, {"a", "b"});
  job.state = stop(job.state, {.by = "root"});
  EXPECT_EQ(job.state.phase, Phase::kFailed);
  EXPECT_EQ(job.state.cause, "stopped by root");
  EXPECT_EQ(job.state.fault.status, 143);
  EXPECT_EQ(job.action("b", 1), AgentAction::kStopWorkers);
  EXPECT_EQ(job.action("b"), AgentAction::kEnd);
  const RendezvousState stopped = job.state;
  EXPECT_EQ(stop(stopped, {.by = "another"}), stopped);
}

TEST(RendezvousStateTest, AStopCanBeHurried) {
  Job job = running_job({}, {"a"});
  job.state = stop(job.state, {.by = "root"});
  job.state = stop(job.state, {.by = "root", .at_once = true});
  EXPECT_EQ(job.state.cause, "stopped at once by root");
  EXPECT_EQ(job.state.fault.status, 137);
  EXPECT_EQ(job.state.end, GenerationEnd::kStoppedAtOnce);
}

TEST(RendezvousStateTest, AStopChangesNoEnd) {
  Job succeeded = running_job({}, {"a"});
  succeeded.succeed("a");
  Job failed = running_job({}, {"a"});
  failed.fail("a", {.text = "rank 0", .status = 3});
  for (const RendezvousState& state : {succeeded.state, failed.state}) {
    EXPECT_EQ(stop(state, {.by = "root", .at_once = true}), state);
    EXPECT_FALSE(is_stop(state.end));
  }
}

TEST(RendezvousStateTest, AMachineThatChangesItsWorkersJoinsTheNextRoundWithThem) {
  Job job{{.min_nodes = 2, .max_nodes = 2, .machines_may_change = false}};
  job.join("a", 1);
  job.join("b", 2);
  job.state = resize(job.state, job.rules, "a", 1, 1);
  EXPECT_EQ(job.state.phase, Phase::kRunning) << "as many as before";
  job.state = resize(job.state, job.rules, "a", 0, 3);
  EXPECT_EQ(job.state.phase, Phase::kRunning) << "said of an earlier generation";
  job.state = resize(job.state, job.rules, "a", 1, 3);
  EXPECT_EQ(job.state.phase, Phase::kGathering);
  EXPECT_EQ(job.state.cause, "machine host of a is scaled from 1 to 3 workers");
  EXPECT_EQ(job.action("b", 1), AgentAction::kStopWorkers);
  job.join("b", 2);
  job.join("a", 3);
  EXPECT_EQ(job.state.generation, 2U);
  EXPECT_EQ(job.state.restarts, 0);
  EXPECT_EQ(placement_of(job.state, "b")->first_rank, 3);
  EXPECT_EQ(placement_of(job.state, "b")->world_size, 5);
}

TEST(RendezvousStateTest, AMachineWhoseWorkersHaveEndedChangesNoMore) {
  Job job = running_job({.min_nodes = 2, .max_nodes = 2}, {"a", "b"});
  job.succeed("a");
  job.state = resize(job.state, job.rules, "a", 1, 3);
  EXPECT_EQ(job.state.phase, Phase::kRunning);
}

}  // namespace
}  // namespace lockstep
