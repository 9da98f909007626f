// Transitions that random schedules seldom reach, or whose loss they forgive.
#include "launcher/supervise/supervision.h"

#include <algorithm>
#include <csignal>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kReads{2'000};

/// The supervision of one machine, whose actions are answered by hand.
class Supervised {
 public:
  /// Workers 1 to `workers` run, and keep their state.
  explicit Supervised(int workers, int standby_workers = 0)
      : state({.shutdown_timeout = seconds(30), .standby_workers = standby_workers}) {
    begins(1, workers);
    for (WorkerId id = 1; id <= workers; ++id) says(id, KeepsState{.reads_within = kReads});
  }

  void begins(std::uint64_t generation, int workers) {
    happens(happened::ViewChanged{{.phase = RendezvousState::Phase::kRunning,
                                   .generation = generation,
                                   .placement = NodePlacement{}}});
    happens(happened::GenerationReady{.generation = generation, .worker_count = workers});
    const std::vector<SupervisionAction> begun = actions;
    for (auto& [id, worker] : state.workers) {
      if (worker.exit.pid == 0) happens(happened::WorkerStarted{.worker = id, .pid = 100 + id});
    }
    actions = begun;
  }
  void says(WorkerId worker, const WorkerMessage& message) {
    happens(happened::MessageReceived{worker, message});
  }
  void leaves(WorkerId worker, LeftGroup::Cause cause = LeftGroup::Cause::kOtherWorker) {
    says(worker, LeftGroup{.generation = state.generation, .text = "why", .cause = cause});
  }
  void ends(WorkerId worker, const WorkerExit& exit) {
    happens(happened::WorkerEnded{worker, exit});
    happens(happened::GroupEmptied{worker});
  }
  void pass(milliseconds time) {
    now += time;
    decide();
  }
  void decide() { happens(happened::DecisionDue{}); }
  void happens(const SupervisionEvent& event) { actions = step(state, event, now); }

  /// Among the actions of the last event.
  template <class Action>
  int count(const auto& predicate) const {
    return static_cast<int>(std::ranges::count_if(actions, [&](const SupervisionAction& action) {
      const auto* const one = std::get_if<Action>(&action);
      return one != nullptr && predicate(*one);
    }));
  }
  template <class Action>
  int count() const {
    return count<Action>([](const Action&) { return true; });
  }
  bool signals(WorkerId worker, int signal) const {
    return count<action::SignalGroup>(
               [&](const auto& one) { return one.worker == worker && one.signal == signal; }) > 0;
  }
  /// No worker is spared.
  bool stops_all(int signal) const {
    return count<action::SignalAll>(
               [&](const auto& one) { return one.signal == signal && one.spared.empty(); }) > 0;
  }
  WorkerState state_of(WorkerId worker) const { return state.workers.at(worker).state; }

  SupervisionState state;
  SupervisionState::Time now{};
  std::vector<SupervisionAction> actions;
};

/// Worker 2 is late, and was in no collective when the stacks were read.
Supervised search_for_second_worker() {
  Supervised job(2);
  job.leaves(1, LeftGroup::Cause::kLateRank);
  EXPECT_EQ(job.count<action::ExplainHang>(), 1);
  job.happens(happened::HangExplained{{{1, {"wait()", true}}, {2, {"work()", false}}}});
  EXPECT_EQ(job.count<action::SendLeaveGroup>(), 1);
  return job;
}

happened::HangingPlacesRead place_read(WorkerId worker, const char* hangs_in,
                                       bool is_in_collective) {
  return {{{worker, {hangs_in, is_in_collective}}}};
}

TEST(Supervision, ALateRankIsKilledOnceItsStackWasReadAgain) {
  Supervised job = search_for_second_worker();
  job.pass(milliseconds(499));
  EXPECT_TRUE(job.actions.empty());
  job.pass(milliseconds(1));
  EXPECT_EQ(job.count<action::ReadHangingPlaces>(), 1);
  EXPECT_FALSE(job.signals(2, SIGKILL));
  job.happens(place_read(2, "work() again", false));
  EXPECT_TRUE(job.signals(2, SIGKILL));
  EXPECT_EQ(job.state.workers.at(2).exit.hangs_in, "work() again");
}

TEST(Supervision, AWorkerWhoseDeadlineExpiredNamesTheLateRank) {
  Supervised job(2);
  job.says(1, DeadlineExpired{.operation = "all_reduce"});
  EXPECT_EQ(job.count<action::ExplainHang>(), 1);
  job.happens(happened::HangExplained{{{1, {"wait()", true}}, {2, {"work()", false, true}}}});
  job.happens(happened::WorkerEnded{1, {.exit_code = 1}});
  ASSERT_EQ(job.state.outcome.exits.size(), 1U);
  EXPECT_EQ(job.state.outcome.exits[0].late_rank, "rank 1 (pid 102) hangs in work()");
}

TEST(Supervision, AWorkerThatFailsLaterThanItsDeadlineNamesNoLateRank) {
  for (const bool is_late_end : {false, true}) {
    Supervised job(2);
    job.says(1, DeadlineExpired{.operation = "monitored_barrier"});
    job.happens(happened::HangExplained{{{1, {"wait()", true}}, {2, {"work()", false, true}}}});
    // The program catches the error.
    if (is_late_end) job.now += seconds(11);
    job.happens(happened::WorkerEnded{
        1, {.exit_code = is_late_end ? 1 : 0, .signal = is_late_end ? 0 : SIGSEGV}});
    ASSERT_EQ(job.state.outcome.exits.size(), 1U);
    EXPECT_EQ(job.state.outcome.exits[0].late_rank, "");
  }
}

TEST(Supervision, TheLateRankIsThatOfTheNewestHang) {
  Supervised job(3);
  job.says(1, DeadlineExpired{.operation = "monitored_barrier"});
  job.happens(happened::HangExplained{{{2, {"work()", false, true}}, {3, {"other()", false}}}});
  job.now += seconds(60);
  job.says(1, DeadlineExpired{.operation = "all_reduce"});
  job.happens(happened::HangExplained{{{2, {"wait()", true}}, {3, {"other()", false, true}}}});
  job.happens(happened::WorkerEnded{1, {.exit_code = 1}});
  ASSERT_EQ(job.state.outcome.exits.size(), 1U);
  EXPECT_EQ(job.state.outcome.exits[0].late_rank, "rank 2 (pid 103) hangs in other()");
}

TEST(Supervision, ALateRankWhoseOwnDeadlineExpiredNamesNoOther) {
  Supervised job(2);
  for (const WorkerId id : {1, 2}) job.says(id, DeadlineExpired{.operation = "all_reduce"});
  job.happens(happened::HangExplained{{{1, {"wait()", true}}, {2, {"wait()", true, true}}}});
  job.happens(happened::WorkerEnded{2, {.exit_code = 1}});
  ASSERT_EQ(job.state.outcome.exits.size(), 1U);
  EXPECT_EQ(job.state.outcome.exits[0].late_rank, "");
}

// Simulated seed 102999.
TEST(Supervision, ALateRankThatEnteredACollectiveHasTheTimeToLeaveIt) {
  Supervised job = search_for_second_worker();
  job.pass(milliseconds(500));
  job.happens(place_read(2, "all_reduce()", true));
  EXPECT_FALSE(job.signals(2, SIGKILL));
  job.pass(milliseconds(4'499));
  EXPECT_EQ(job.state_of(2), WorkerState::kRunning);
  job.pass(milliseconds(1));
  EXPECT_TRUE(job.signals(2, SIGKILL));
}

bool is_replacement_text(const action::Say& words) {
  return words.text == "rank 1 was replaced; training continues";
}

TEST(Supervision, AReplacedRankIsReportedOnceAllRanksHaveJoined) {
  for (const bool is_new_first : {false, true}) {
    Supervised job(2);
    job.ends(2, {.signal = SIGKILL});
    job.decide();
    job.begins(2, 2);
    const auto join_survivor = [&] { job.says(1, TookRank{.generation = 2}); };
    if (!is_new_first) join_survivor();
    job.says(3, KeepsState{.reads_within = kReads});
    if (is_new_first) {
      EXPECT_EQ(job.count<action::Say>(), 0);
      join_survivor();
    }
    EXPECT_EQ(job.count<action::Say>(is_replacement_text), 1);
    job.says(3, KeepsState{.reads_within = kReads});
    EXPECT_EQ(job.count<action::Say>(), 0);
  }
}

TEST(Supervision, ARankThatIsAddedReplacesNone) {
  Supervised job(1);
  job.leaves(1);
  job.pass(seconds(1));
  job.begins(2, 2);
  job.says(1, TookRank{.generation = 2});
  EXPECT_EQ(job.count<action::Say>(), 0);
  job.says(2, KeepsState{.reads_within = kReads});
  EXPECT_EQ(job.state_of(2), WorkerState::kRunning);
  EXPECT_EQ(job.count<action::Say>(), 0);
}

// Each wait may take as long as a stack that cannot be read.
TEST(Supervision, TheStacksOfAllLateRanksAreReadAtOnce) {
  Supervised job(4);
  job.leaves(1, LeftGroup::Cause::kLateRank);
  job.happens(happened::HangExplained{});
  job.leaves(4);
  job.pass(milliseconds(500));
  EXPECT_EQ(job.count<action::ReadHangingPlaces>([](const auto& read) {
    return read.workers == std::vector<WorkerId>{2, 3};
  }),
            1);
  EXPECT_EQ(job.count<action::ReadHangingPlaces>(), 1);
  job.happens(happened::HangingPlacesRead{{{2, {"work()", false}}, {3, {"wait()", true}}}});
  EXPECT_TRUE(job.signals(2, SIGKILL));
  EXPECT_FALSE(job.signals(3, SIGKILL));
  EXPECT_EQ(job.state.workers.at(2).exit.hangs_in, "work()");
  EXPECT_EQ(job.state_of(3), WorkerState::kRunning);
}

TEST(Supervision, TheStacksOfAllRanksThatDoNotJoinAreReadAtOnce) {
  Supervised job(3);
  job.leaves(1);
  job.pass(seconds(1));
  job.begins(2, 3);
  job.says(1, TookRank{.generation = 2});
  job.pass(kReads + milliseconds(500));
  EXPECT_EQ(job.count<action::ReadHangingPlaces>([](const auto& read) {
    return read.workers == std::vector<WorkerId>{2, 3};
  }),
            1);
  for (const WorkerId id : {2, 3}) EXPECT_TRUE(job.signals(id, SIGKILL));
}

TEST(Supervision, AWorkerIsToldThatOthersGoOnWithoutIt) {
  Supervised job(3);
  job.leaves(1);
  job.pass(seconds(1));
  job.begins(2, 2);
  const auto is_told = [](const auto& one) { return one.worker == 3 && one.generation == 2; };
  EXPECT_EQ(job.count<action::SendLeaveGroup>(is_told), 1);
  EXPECT_TRUE(job.signals(3, SIGTERM));
}

TEST(Supervision, ARankThatLeftWhileItsStackWasReadIsKept) {
  Supervised job = search_for_second_worker();
  job.pass(milliseconds(500));
  job.leaves(2);
  job.happens(place_read(2, "work()", false));
  EXPECT_FALSE(job.signals(2, SIGKILL));
  job.decide();
  EXPECT_EQ(job.state.phase, SupervisionPhase::kBetween);
}

TEST(Supervision, TheEndOfAKilledRankIsAwaited) {
  Supervised job = search_for_second_worker();
  job.pass(milliseconds(500));
  job.happens(place_read(2, "work()", false));
  job.pass(milliseconds(999));
  EXPECT_EQ(job.state.phase, SupervisionPhase::kRunning);
  job.pass(milliseconds(1));
  EXPECT_EQ(job.state.phase, SupervisionPhase::kBetween);
}

TEST(Supervision, ARankThatHasYetToJoinKeepsItsTimeInASearch) {
  Supervised job(3);
  job.leaves(1);
  job.pass(seconds(1));
  job.begins(2, 3);
  job.says(1, TookRank{.generation = 2});
  job.says(2, TookRank{.generation = 2});
  job.leaves(1, LeftGroup::Cause::kLateRank);
  job.happens(happened::HangExplained{});
  job.leaves(2);
  job.pass(kReads);
  EXPECT_EQ(job.count<action::ReadHangingPlaces>(), 0);
  EXPECT_EQ(job.state_of(3), WorkerState::kRecovering);
  job.pass(milliseconds(500));
  EXPECT_EQ(job.state_of(3), WorkerState::kHanging);
}

TEST(Supervision, EachGenerationHasItsOwnSearch) {
  Supervised job = search_for_second_worker();
  job.leaves(2);
  job.decide();
  ASSERT_EQ(job.state.phase, SupervisionPhase::kBetween);
  job.begins(2, 2);
  for (const WorkerId id : {1, 2}) job.says(id, TookRank{.generation = 2});
  job.leaves(1, LeftGroup::Cause::kLateRank);
  EXPECT_EQ(job.count<action::ExplainHang>(), 1);
}

TEST(Supervision, ADeadlineOfTheGenerationBeforeEndsNoOther) {
  Supervised job(2);
  job.leaves(1);
  job.happens(happened::ViewChanged{});
  job.decide();
  ASSERT_EQ(job.state.phase, SupervisionPhase::kBetween);
  job.leaves(2);
  job.begins(2, 2);
  for (const WorkerId id : {1, 2}) job.says(id, TookRank{.generation = 2});
  job.pass(seconds(5));
  EXPECT_EQ(job.state.phase, SupervisionPhase::kRunning);
}

// The first has left a second ago.
TEST(Supervision, RanksThatLeaveLaterDoNotDelayTheEndOfAGeneration) {
  Supervised job(3);
  job.leaves(1);
  job.pass(milliseconds(600));
  job.leaves(2);
  job.pass(milliseconds(400));
  EXPECT_EQ(job.state.phase, SupervisionPhase::kBetween);
}

// It may have been started before there was a copy of the state.
TEST(Supervision, AStandbyWorkerGetsTheMemoryFileWithItsFirstPlace) {
  Supervised job(2, /*standby_workers=*/1);
  job.pass(milliseconds(0));
  job.pass(milliseconds(500));
  ASSERT_EQ(job.count<action::StartWorker>(), 1);
  job.says(3, KeepsState{.reads_within = kReads});
  for (const std::uint64_t generation : {2U, 3U}) {
    job.ends(generation == 2 ? 1 : 2, {.signal = SIGKILL});
    job.decide();
    job.begins(generation, 2);
    EXPECT_EQ(job.count<action::SendRank>([&](const auto& send) {
      return send.worker == 3 && send.local_rank == 0 && send.is_first == (generation == 2);
    }),
              1);
    job.says(3, TookRank{.generation = generation});
  }
}

// It waits half a second for its stack to be read, also where that was read for another rank.
TEST(Supervision, EachRankThatWaitedInVainIsReleased) {
  Supervised job(3);
  for (const WorkerId id : {1, 2}) {
    job.says(id, DeadlineExpired{.operation = "all_reduce"});
    EXPECT_EQ(job.count<action::ExplainHang>(), id == 1 ? 1 : 0);
    EXPECT_EQ(
        job.count<action::ReleaseWaitingWorker>([id](const auto& one) { return one.worker == id; }),
        1);
    if (id == 1) job.happens(happened::HangExplained{});
  }
}

// Else its hang in that generation would be no restart.
TEST(Supervision, ARankThatJoinsIsNotSilentAnyMore) {
  Supervised job(3);
  job.ends(1, {.signal = SIGKILL});
  job.decide();
  job.begins(2, 3);
  for (const WorkerId id : {2, 3}) EXPECT_EQ(job.state.workers.at(id).exit.silent_since, 1U);
  job.says(2, TookRank{.generation = 2});
  job.leaves(3);
  for (const WorkerId id : {2, 3}) EXPECT_EQ(job.state.workers.at(id).exit.silent_since, 0U);
}

TEST(Supervision, NoHangIsExplainedBetweenGenerations) {
  Supervised job(2);
  job.leaves(1);
  job.pass(seconds(1));
  job.says(2, DeadlineExpired{.operation = "all_reduce"});
  EXPECT_EQ(job.count<action::ExplainHang>(), 0);
}

TEST(Supervision, AWorkerThatGivesRecoveryUpBetweenGenerationsEnds) {
  Supervised job(2);
  job.leaves(1);
  job.pass(seconds(1));
  job.says(2, TrainingDone{.is_complete = false});
  EXPECT_TRUE(job.signals(2, SIGTERM));
  job.pass(seconds(29));
  EXPECT_FALSE(job.signals(2, SIGKILL));
  job.pass(seconds(1));
  EXPECT_TRUE(job.signals(2, SIGKILL));
}

TEST(Supervision, AWorkerThatIsDoneBetweenGenerationsHasItsTimeToEnd) {
  Supervised job(2);
  job.leaves(1);
  job.pass(seconds(1));
  job.says(2, TrainingDone{});
  job.pass(seconds(29));
  EXPECT_EQ(job.count<action::AskForGeneration>(), 0);
  EXPECT_FALSE(job.signals(2, SIGKILL));
  job.pass(seconds(1));
  EXPECT_TRUE(job.signals(2, SIGKILL));
}

TEST(Supervision, WithoutAConnectionAWorkerKeepsNoRank) {
  Supervised job(2);
  job.happens(happened::LinkClosed{2});
  job.leaves(1);
  job.pass(seconds(1));
  EXPECT_TRUE(job.signals(2, SIGKILL));
  EXPECT_EQ(job.state_of(2), WorkerState::kDismissed);
}

// What failed before is replaced in any case.
TEST(Supervision, APreemptionBetweenGenerationsIsTheCause) {
  Supervised job(3);
  job.leaves(1);
  job.ends(3, {.signal = SIGKILL});
  job.decide();
  ASSERT_EQ(job.state.phase, SupervisionPhase::kBetween);
  ASSERT_FALSE(job.state.outcome.lost.empty());
  job.ends(2, {.exit_code = kExitPreempted});
  EXPECT_EQ(job.state.phase, SupervisionPhase::kPreempted);
  ASSERT_EQ(job.state.outcome.exits.size(), 1U);
  EXPECT_EQ(job.state.outcome.exits[0].exit_code, kExitPreempted);
  EXPECT_TRUE(job.state.outcome.lost.empty());
  job.decide();
  EXPECT_TRUE(job.stops_all(SIGTERM));
}

TEST(Supervision, AStopAtOnceKillsWorkersThatWereSentSigterm) {
  Supervised job(2);
  job.happens(happened::StopSignal{SIGTERM});
  EXPECT_TRUE(job.stops_all(SIGTERM));
  job.happens(happened::ViewChanged{{.generation = 1, .end = GenerationEnd::kStoppedAtOnce}});
  job.decide();
  EXPECT_TRUE(job.stops_all(SIGKILL));
}

// After a failure it has its time to end; with a job that is stopped it has not.
TEST(Supervision, AWorkerThatIsDoneIsStoppedWithTheJob) {
  Supervised job(2);
  job.says(2, TrainingDone{});
  job.ends(1, {.exit_code = 1});
  job.decide();
  EXPECT_EQ(job.count<action::SignalAll>(), 1);
  EXPECT_FALSE(job.stops_all(SIGTERM));
  job.happens(happened::ViewChanged{{.generation = 1, .end = GenerationEnd::kStopped}});
  job.decide();
  EXPECT_TRUE(job.stops_all(SIGTERM));
}

// The next generation replaces it anyway.
TEST(Supervision, AFailureOfTheGenerationBeforeIsNoCauseOfAStop) {
  Supervised job(2);
  job.ends(2, {.signal = SIGKILL});
  job.decide();
  ASSERT_EQ(job.state.phase, SupervisionPhase::kBetween);
  job.happens(happened::StopSignal{SIGTERM});
  EXPECT_TRUE(job.state.outcome.exits.empty());
}

// Its replacement would begin a training of its own.
TEST(Supervision, NoStateIsKeptBesideAWorkerThatEndedWellWithoutRecovery) {
  Supervised job(2);
  job.says(2, TrainingDone{.is_complete = false});
  job.ends(2, {.exit_code = 0});
  job.leaves(1);
  job.pass(seconds(1));
  EXPECT_TRUE(job.stops_all(SIGTERM));
}

TEST(Supervision, NoSignalIsForwardedToAWorkerThatHasEnded) {
  Supervised job(2);
  job.happens(happened::NoticeSignal{SIGUSR1});
  EXPECT_EQ(job.count<action::ReadSignalFate>(), 2);
  job.happens(happened::WorkerEnded{2, {.exit_code = 1}});
  job.decide();
  EXPECT_EQ(job.count<action::ReadSignalFate>(), 1);
}

// A message that comes twice.
TEST(Supervision, WithoutRecoveryAWorkerKeepsNoState) {
  Supervised job(2);
  job.says(2, TrainingDone{.is_complete = false});
  job.says(2, KeepsState{.reads_within = kReads});
  EXPECT_EQ(job.state_of(2), WorkerState::kUnprotected);
  job.leaves(1);
  job.pass(seconds(1));
  EXPECT_TRUE(job.signals(2, SIGKILL));
}

}  // namespace
}  // namespace lockstep
