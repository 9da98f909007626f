#include "diagnose/verdict/generation_outcome.h"

#include <csignal>

#include <gtest/gtest.h>

#include "diagnose/verdict/worker_text.h"
#include "launcher/supervise/failure_report.h"

namespace lockstep {
namespace {

WorkerExit exited(int rank, int exit_code, const std::string& message = "") {
  return {.rank = rank,
          .local_rank = rank,
          .pid = 100 + rank,
          .exit_code = exit_code,
          .error_message = message,
          .error_kind = error_kind_of(message)};
}

WorkerExit killed(int rank, int signal) {
  return {.rank = rank, .local_rank = rank, .pid = 100 + rank, .signal = signal};
}

WorkerExit stopped(WorkerExit exit) {
  exit.told_to_stop = true;
  return exit;
}

int cause_of(const std::vector<WorkerExit>& exits) {
  const GenerationOutcome outcome{.exits = exits};
  const WorkerExit* cause = first_cause(outcome);
  return cause == nullptr ? -1 : cause->rank;
}

TEST(FirstCause, IsTheFirstThatFailedByItself) {
  EXPECT_EQ(cause_of({}), -1);
  EXPECT_EQ(cause_of({exited(0, 0), exited(1, 0)}), -1);
  EXPECT_EQ(cause_of({exited(0, 0), exited(2, 5), stopped(killed(1, SIGTERM))}), 2);
  EXPECT_EQ(cause_of({killed(1, SIGSEGV), exited(0, 1)}), 1);
  EXPECT_EQ(cause_of({stopped(exited(0, 1)), stopped(killed(1, SIGKILL))}), -1);
}

TEST(FirstCause, IsNotAWorkerThatOnlyLostItsPeer) {
  const WorkerExit victim = exited(0, 1, "PeerLost: rank 1 is gone");
  const WorkerExit python_victim = exited(0, 1, "RuntimeError: [..] Connection reset by peer");
  const WorkerExit origin = stopped(exited(1, 3, "ValueError: loss is nan"));
  EXPECT_EQ(cause_of({victim, origin}), 1);
  EXPECT_EQ(cause_of({python_victim, origin}), 1);
  EXPECT_EQ(cause_of({victim, killed(1, SIGKILL)}), 1);
  EXPECT_EQ(cause_of({victim, stopped(killed(1, SIGTERM))}), 0) << "stopped by the launcher only";
  EXPECT_EQ(cause_of({victim}), 0);
}

TEST(FirstCause, IsNotAWorkerThatFollowsAnothersError) {
  const WorkerExit follower = exited(1, 1, "PeerFailed: rank 0 failed to read snapshot a.pt");
  WorkerExit origin = stopped(killed(0, SIGTERM));
  origin.error_message = "CorruptFile: read snapshot a.pt: cut short";
  EXPECT_EQ(cause_of({follower, origin}), 0);
  EXPECT_EQ(cause_of({follower, exited(2, 1, "PeerLost: rank 1 is gone"), origin}), 0);
  EXPECT_EQ(cause_of({exited(1, 1, "Error: wrapped PeerFailed: by the user"), origin}), 1)
      << "the type is what the message begins with";
}

TEST(WorkerExit, StatusIsTheShells) {
  EXPECT_EQ(exited(0, 42).status(), 42);
  EXPECT_EQ(killed(0, SIGKILL).status(), 137);
  EXPECT_EQ(stopped(killed(0, SIGTERM)).status(), 143);
}

TEST(WorkerExit, StatusIsTheErrorsWhenTheStopCameAfterIt) {
  WorkerExit exit = stopped(killed(0, SIGTERM));
  exit.error_message = "CorruptFile: cut short";
  EXPECT_EQ(exit.status(), 1);
  exit.error_code = 2;
  EXPECT_EQ(exit.status(), 2);
  exit.told_to_stop = false;
  EXPECT_EQ(exit.status(), 143) << "a signal from elsewhere is what ended it";
}

TEST(FailureReport, NamesTheFirstAndFoldsTheOthers) {
  GenerationOutcome outcome{.exits = {exited(3, 7, "ValueError: loss is nan")}};
  for (const int rank : {0, 1, 2, 5}) outcome.exits.push_back(stopped(killed(rank, SIGTERM)));
  outcome.exits.push_back(exited(4, 0));
  const std::string report = failure_report(outcome, LaunchOptions{.worker_count = 6});
  EXPECT_NE(
      report.find("job failed: rank 3 (pid 103) exited with code 7: ValueError: loss is nan\n"),
      std::string::npos)
      << report;
  EXPECT_NE(report.find("others: ranks 0-2, 5: stopped by SIGTERM; rank 4: exit code 0\n"),
            std::string::npos)
      << report;
}

TEST(FailureReport, AFailureThatWasCutShortIsNoSignals) {
  WorkerExit origin = stopped(killed(0, SIGKILL));
  origin.error_message = "CorruptFile: cut short";
  const GenerationOutcome outcome{.exits = {exited(1, 1, "PeerFailed: rank 0 failed"), origin}};
  const std::string report = failure_report(outcome, LaunchOptions{.worker_count = 2});
  EXPECT_NE(report.find("pid 100) failed: CorruptFile: cut short, then stopped by SIGKILL\n"),
            std::string::npos)
      << report;
  EXPECT_NE(report.find("others: rank 1: exit code 1\n"), std::string::npos) << report;
}

TEST(FailureReport, NamesTheRankThatHangsFirst) {
  WorkerExit victim = exited(0, 1, "TimeoutError: all_reduce number 12");
  victim.deadline_expired = true;
  victim.late_rank = "rank 1 (pid 101) hangs in read_batch() train.cpp:88";
  const GenerationOutcome outcome{.exits = {victim, stopped(killed(1, SIGTERM))}};
  const std::string report = failure_report(outcome, LaunchOptions{.worker_count = 2});
  EXPECT_TRUE(report.starts_with(
      "lockstep: job failed: rank 1 (pid 101) hangs in read_batch() train.cpp:88; rank 0 (pid 100) "
      "exited with code 1: TimeoutError: all_reduce number 12\n"))
      << report;
}

TEST(FailureReport, TellsOfACrash) {
  WorkerExit crashed = killed(1, SIGSEGV);
  crashed.error_message = "SIGSEGV at address 0x0 in step() a.cpp:4";
  const StackFrame frame{.module = "/train",
                         .lines = {{.function = "step()", .file = "a.cpp", .line = 4}}};
  crashed.crash =
      CrashReport{.thread = "loader", .frames = {frame}, .collectives = {{.call = "barrier"}}};
  const auto report = [&](const WorkerExit& exit) {
    return failure_report({.exits = {exit}}, LaunchOptions{.worker_count = 2});
  };
  EXPECT_NE(report(crashed).find("pid 101) killed by SIGSEGV at address 0x0 in step() a.cpp:4\n"
                                 "lockstep:   thread: 'loader' (not the main thread)\n"
                                 "lockstep:   stack:  step() at a.cpp:4\n"
                                 "lockstep:   calls:  in barrier\n"),
            std::string::npos)
      << report(crashed);
  // Told to stop while it crashed: what ended it is the crash.
  WorkerExit late = stopped(crashed);
  EXPECT_EQ(late.status(), 128 + SIGSEGV);
  const GenerationOutcome outcome{.exits = {exited(0, 1, "PeerLost: rank 1 is gone"), late}};
  EXPECT_EQ(first_cause(outcome)->rank, 1);
  EXPECT_EQ(describe_failure(late), "killed by SIGSEGV at address 0x0 in step() a.cpp:4");
  crashed.error_message = "std::bad_alloc: no memory, uncaught";
  crashed.step = "60";
  EXPECT_EQ(describe_failure(crashed),
            "killed by SIGSEGV at step 60: std::bad_alloc: no memory, uncaught");
}

TEST(DescribeFailure, NamesEndStepAndReason) {
  WorkerExit exit = killed(1, SIGKILL);
  exit.step = "2041";
  EXPECT_EQ(describe_failure(exit), "killed by SIGKILL at step 2041");
  exit.memory_shortage = "its memory cgroup has a limit of 1 GB";
  EXPECT_EQ(describe_failure(exit),
            "killed by SIGKILL at step 2041: out of memory: its memory "
            "cgroup has a limit of 1 GB");
  exit.late_for = "rank 0 left its group";
  exit.hangs_in = "work() a.cpp:4";
  EXPECT_EQ(describe_failure(exit),
            "killed after a hang at step 2041 in work() a.cpp:4: rank 0 left its group");
  EXPECT_EQ(describe_remedy(exit), "");
  EXPECT_EQ(describe_worker({.rank = 5, .local_rank = 1, .pid = 42}),
            "rank 5 (local rank 1, pid 42)");
}

TEST(IsPreempted, WhereAllThatDidNotEndWellHaveSaved) {
  EXPECT_FALSE(is_preempted({}));
  EXPECT_FALSE(is_preempted({.exits = {exited(0, 0)}}));
  EXPECT_TRUE(is_preempted({.exits = {exited(0, 75), exited(1, 75)}}));
  EXPECT_TRUE(is_preempted({.exits = {exited(0, 0), exited(1, 75)}}));
  EXPECT_FALSE(is_preempted({.exits = {exited(0, 75), killed(1, SIGKILL)}}));
  EXPECT_FALSE(is_preempted({.exits = {exited(0, 75), exited(1, 1)}}));
  WorkerExit stopped = killed(1, SIGTERM);
  EXPECT_FALSE(is_preempted({.exits = {exited(0, 75), stopped}}));
  stopped.told_to_stop = true;
  EXPECT_TRUE(is_preempted({.exits = {exited(0, 75), stopped}})) << "it had nothing to save";
}

TEST(FailureReport, PointsAtTheLogOfTheFirst) {
  GenerationOutcome outcome{.exits = {killed(1, SIGKILL)}};
  outcome.exits[0].directory = "/logs/attempt_0/1";
  LaunchOptions options{.worker_count = 2};
  options.redirects = parse_stream_map("--redirects", "3");
  const std::string report = failure_report(outcome, options);
  EXPECT_NE(report.find("/logs/attempt_0/1/stderr.log"), std::string::npos) << report;
  EXPECT_NE(report.find("hint:   lockstep did not send SIGKILL"), std::string::npos) << report;
}

TEST(FailureReport, SaysWhyTheJobIsNotRestartedUnlessThatWasCut) {
  EXPECT_EQ(reason_after("a failed", "a failed; 3 times in a row"), "3 times in a row");
  EXPECT_EQ(reason_after("a failed", "a failed"), "");
  constexpr std::size_t kLongest = 2'000;  // of a text that agents send
  for (const std::size_t size : {kLongest - 3, kLongest - 2, kLongest - 1, kLongest}) {
    const std::string fault(size, 'x');
    const std::string cause = (fault + "; 3 times in a row").substr(0, kLongest);
    EXPECT_EQ(reason_after(fault, cause), size == kLongest - 3 ? "3" : "") << size;
  }
}

}  // namespace
}  // namespace lockstep
