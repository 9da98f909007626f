#include "launcher/rendezvous/rendezvous_service.h"

#include <gtest/gtest.h>

#include "lockstep/base/internal/concat.h"

namespace lockstep {
namespace {

using Phase = RendezvousState::Phase;
using Status = AgentReport::Status;
using std::chrono::milliseconds;
using std::chrono::seconds;

// A service, its clock, and agents that say what they have to.
struct ServiceTest : testing::Test {
  RendezvousTimeouts timeouts{.join = seconds(100), .last_call = seconds(10)};
  RendezvousService::Instant now{seconds(1'000)};
  RendezvousService service{{.min_nodes = 1, .max_nodes = 3, .max_restarts = 1}, timeouts};

  void report(const std::string& id, Status status, std::uint64_t generation = 0) {
    AgentReport report{.node = {.id = id, .name = concat("host of ", id[0]), .host = concat(id[0])},
                       .status = status};
    report.generation = generation;
    report.farewell = "left";
    report.fault = {.text = concat("a worker of ", id), .status = 3};
    service.report(report, now);
  }
  void pass(milliseconds time) {
    now += time;
    service.tick(now);
  }
  Phase phase() const { return service.state().phase; }
  std::uint64_t generation() const { return service.state().generation; }
  std::size_t members() const { return service.state().nodes.size(); }
};

TEST_F(ServiceTest, ARoundStartsAfterTheLastCall) {
  report("a", Status::kReady);
  EXPECT_EQ(service.next_event(), now + seconds(10));
  pass(seconds(9));
  report("b", Status::kReady);
  EXPECT_EQ(phase(), Phase::kGathering);
  pass(seconds(1));
  EXPECT_EQ(phase(), Phase::kRunning);
  EXPECT_EQ(members(), 2U);
}

TEST_F(ServiceTest, AStateThatIsTakenOverWaitsForItsNodes) {
  report("a", Status::kReady);
  report("b", Status::kReady);
  report("c", Status::kReady);
  const RendezvousState saved = service.state();
  ASSERT_EQ(saved.generation, 1U);
  service = RendezvousService({.min_nodes = 1, .max_nodes = 3}, timeouts, saved);
  service.await_nodes(now);
  service.silent_since("a", now - seconds(5));  // the one that kept it
  pass(timeouts.keep_alive_limit - seconds(6));
  EXPECT_EQ(phase(), Phase::kRunning);
  pass(seconds(1));
  EXPECT_EQ(service.state().cause, "machine host of a was lost");
  report("b", Status::kReady, 1);
  EXPECT_EQ(phase(), Phase::kGathering) << "c has yet to be heard of";
  pass(seconds(5));
  EXPECT_EQ(generation(), 2U);
  EXPECT_EQ(members(), 1U);
}

TEST_F(ServiceTest, WhoIsMissingIsSaid) {
  service = RendezvousService({.min_nodes = 2, .max_nodes = 2}, timeouts);
  report("a", Status::kReady);
  pass(seconds(4));
  EXPECT_EQ(service.missing(now), "1 of 2 machines joined (host of a); timeout in 96 s");
  while (phase() == Phase::kGathering) {
    report("a", Status::kReady);
    pass(seconds(20));
  }
  EXPECT_EQ(phase(), Phase::kFailed);
  EXPECT_EQ(service.view("a").cause,
            "1 of at least 2 machines joined in time: host of a; start the others, or give them "
            "longer with "
            "--rdzv-conf=join_timeout=SECONDS");
  EXPECT_EQ(service.view("a").status, 1);
}

TEST_F(ServiceTest, AnAgentThatIsNotHeardOfIsLost) {
  for (const char* id : {"a", "b", "c"}) report(id, Status::kReady);
  EXPECT_EQ(generation(), 1U);
  pass(seconds(29));
  for (const char* id : {"a", "b"}) report(id, Status::kRunning, 1);
  EXPECT_EQ(phase(), Phase::kRunning);
  EXPECT_EQ(service.next_event(), now + seconds(1));
  pass(seconds(1));
  EXPECT_EQ(phase(), Phase::kGathering);
  EXPECT_EQ(service.state().cause, "machine host of c was lost");
  report("a", Status::kReady, 1);
  report("b", Status::kReady, 1);
  EXPECT_EQ(generation(), 2U) << "the rest goes on without waiting";
  EXPECT_EQ(members(), 2U);
}

TEST_F(ServiceTest, AClosedConnectionMayComeBackWithinASecond) {
  report("a", Status::kReady);
  report("b", Status::kReady);
  report("c", Status::kReady);
  service.closed("b", now);
  pass(milliseconds(900));
  report("b", Status::kRunning, 1);
  pass(milliseconds(500));
  EXPECT_EQ(phase(), Phase::kRunning);
  service.closed("b", now);
  pass(milliseconds(1'000));
  EXPECT_EQ(phase(), Phase::kGathering);
}

// An answer to it was lost with the link: it held itself for lost before it was, and stopped.
TEST_F(ServiceTest, AMemberThatStoppedByItselfIsStartedAgain) {
  for (const char* id : {"a", "b", "c"}) report(id, Status::kReady);
  for (const char* id : {"a", "b", "c"}) report(id, Status::kRunning, 1);
  report("b", Status::kReady, 1);
  EXPECT_EQ(phase(), Phase::kGathering);
  EXPECT_EQ(service.state().cause, "machine host of b was cut off and stopped its workers");
  report("a", Status::kReady, 1);
  report("c", Status::kReady, 1);
  EXPECT_EQ(generation(), 2U);
  EXPECT_EQ(members(), 3U);
}

TEST_F(ServiceTest, SoIsOneThatKnowsNotYetThatItMayJoin) {
  for (const char* id : {"a", "b", "c"}) report(id, Status::kReady);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(phase(), Phase::kRunning) << "it may be about to leave";
    report("b", Status::kIdle, 1);
    pass(milliseconds(250));
  }
  EXPECT_EQ(phase(), Phase::kGathering);
  report("b", Status::kIdle, 1);
  pass(seconds(2));
  EXPECT_EQ(service.state().gathering, 2U) << "once";
}

TEST_F(ServiceTest, WhoseWorkersHaveAllSucceededHasNoneToStartAgain) {
  for (const char* id : {"a", "b", "c"}) report(id, Status::kReady);
  report("b", Status::kSucceeded, 1);
  report("b", Status::kReady, 1);
  EXPECT_EQ(phase(), Phase::kRunning);
}

TEST_F(ServiceTest, AnAgentThatLeavesIsNotWaitedFor) {
  for (const char* id : {"a", "b", "c"}) report(id, Status::kReady);
  report("c", Status::kLeaving);
  EXPECT_EQ(service.state().cause, "machine host of c left");
  report("a", Status::kReady, 1);
  report("b", Status::kReady, 1);
  EXPECT_EQ(generation(), 2U);
}

TEST_F(ServiceTest, WhatWasSaidBeforeARoundIsNoReadinessForTheNext) {
  for (const char* id : {"a", "b", "c"}) report(id, Status::kReady);
  report("c", Status::kFailed, 1);
  EXPECT_EQ(phase(), Phase::kGathering);
  report("a", Status::kReady, 0);
  pass(seconds(1));
  EXPECT_EQ(members(), 0U);
  report("a", Status::kReady, 1);
  EXPECT_EQ(members(), 1U);
}

TEST_F(ServiceTest, AFailureBeyondTheRestartsEndsTheJobWithItsStatus) {
  service = RendezvousService({.min_nodes = 1, .max_nodes = 1}, timeouts);
  report("a", Status::kReady);
  report("a", Status::kFailed, 1);
  EXPECT_EQ(service.view("a").cause, "a worker of a");
  EXPECT_EQ(service.view("a").status, 3);
}

TEST_F(ServiceTest, ALauncherThatStaysIsNotHeldBackByOthersOfItsHost) {
  report("b", Status::kReady);
  pass(seconds(10));
  for (int i = 0; i < 3; ++i) {
    const std::string id = concat("b", i);
    report(id, Status::kReady);
    report("b", Status::kReady, generation());
    EXPECT_EQ(members(), 2U);
    service.closed(id, now);
    pass(seconds(1));
    report("b", Status::kReady, generation());
    EXPECT_EQ(members(), 1U) << "lost " << i + 1 << " times";
    EXPECT_EQ(phase(), Phase::kRunning);
  }
}

TEST_F(ServiceTest, AMachineThatFlapsCoolsDown) {
  report("a", Status::kReady);
  pass(seconds(10));
  std::uint64_t seen = generation();
  for (int i = 0; i < 3; ++i) {
    const std::string id = concat("b", i);
    report(id, Status::kReady);
    report("a", Status::kReady, generation());
    EXPECT_GT(generation(), seen) << "taken in";
    seen = generation();
    service.closed(id, now);
    pass(seconds(1));
    report("a", Status::kReady, generation());
    seen = generation();
    EXPECT_EQ(members(), 1U);
  }
  report("b4", Status::kReady);
  EXPECT_EQ(phase(), Phase::kRunning) << "not at once";
  EXPECT_EQ(service.next_event(), now + seconds(10));
  pass(seconds(10));
  report("a", Status::kReady, generation());
  EXPECT_EQ(members(), 2U);
}

TEST_F(ServiceTest, ASecondAgentUnderOneNameIsRefusedNamingTheOwner) {
  EXPECT_EQ(service.objection({.id = "b"}), "");
  AgentReport first{.node = {.id = "a", .name = "first", .rank = 1}, .status = Status::kReady};
  service.report(first, now);
  EXPECT_EQ(service.objection(first.node), "");
  EXPECT_EQ(service.objection({.id = "b", .name = "second", .rank = 0}), "");
  EXPECT_EQ(service.objection({.id = "b", .name = "second", .rank = 1}),
            "node rank 1 is taken by first");
}

TEST_F(ServiceTest, AnAgentCanStopTheJobWhateverItDoes) {
  report("a", Status::kReady);
  service.report({.node = {.id = "a"}, .stop = {.by = "root"}}, now);
  EXPECT_EQ(phase(), Phase::kFailed);
  EXPECT_EQ(service.view("a").cause, "stopped by root");
}

TEST_F(ServiceTest, AnAgentThatRunsOtherwiseThanItJoinedStartsARound) {
  report("a", Status::kReady);
  pass(seconds(10));
  ASSERT_EQ(phase(), Phase::kRunning);
  AgentReport running{.node = {.id = "a", .worker_count = 2}, .status = Status::kRunning};
  running.generation = 1;
  service.report(running, now);
  EXPECT_EQ(phase(), Phase::kGathering);
  running.status = Status::kReady;
  service.report(running, now);
  EXPECT_EQ(service.view("a").placement->world_size, 2);
}

TEST_F(ServiceTest, AnAgentThatWasStartedOtherwiseIsRefusedNamingTheDifference) {
  const std::string agreement = "lockstep 1; --nnodes=2; --max-restarts=3";
  AgentReport first{.node = {.id = "a", .name = "first"}};
  first.node.agreement = agreement;
  service.report(first, now);
  const auto objection = [&](const std::string& other) {
    RendezvousNode second{.id = "b", .name = "second"};
    second.agreement = other;
    return service.objection(second);
  };
  EXPECT_EQ(objection(agreement), "");
  EXPECT_EQ(objection(""), "");  // It does not say.
  EXPECT_EQ(objection("lockstep 1; --nnodes=2; --max-restarts=0"),
            "it was started as --max-restarts=0, and first as --max-restarts=3; use the same on "
            "all machines of a job");
  EXPECT_NE(objection("lockstep 2; --other").find("as lockstep 2, and first as lockstep 1"),
            std::string::npos);
  EXPECT_NE(objection("lockstep 1; --nnodes=2").find("as nothing"), std::string::npos);
}

TEST_F(ServiceTest, AnotherProgramIsOddWhereTheRoleIsTheSame) {
  AgentReport first{.node = {.id = "a", .name = "first"}};
  first.node.program = "1";
  service.report(first, now);
  RendezvousNode second{.id = "b", .name = "second"};
  EXPECT_EQ(service.warning(second), "");
  second.program = "1";
  EXPECT_EQ(service.warning(second), "");
  second.program = "2";
  EXPECT_NE(
      service.warning(second).find("machine second runs another program file than machine first"),
      std::string::npos);
  EXPECT_EQ(service.objection(second), "");
  second.role = "other";
  EXPECT_EQ(service.warning(second), "");
}

}  // namespace
}  // namespace lockstep
