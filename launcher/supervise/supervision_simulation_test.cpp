// Jobs of one to three machines, with deaths, hangs, late and doubled messages, signals, machines
// that join, leave and are lost, standby workers that fail, and stops in the middle of each:
// however it happens, nothing is left running, nobody waits for ever, and each failure is one
// restart.
#include <algorithm>
#include <array>
#include <cstdio>
#include <random>

#include <gtest/gtest.h>

#include "launcher/supervise/simulated_job.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/simulated_seeds_testing.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

SimulatedOptions draw_options(std::uint64_t seed) {
  std::mt19937_64 random(seed ^ 0x5eedULL);
  const auto draw = [&](int least, int most) {
    return std::uniform_int_distribution(least, most)(random);
  };
  SimulatedOptions options{.seed = seed, .is_random = true};
  options.machines = draw(1, 3);
  options.workers_per_machine = draw(1, 3);
  options.rules.max_nodes = options.machines == 1 && draw(1, 2) == 1 ? 1 : options.machines + 1;
  options.rules.min_nodes = draw(1, options.machines);
  options.rules.max_restarts = draw(0, 10);
  options.supervision.shutdown_timeout = milliseconds(draw(0, 2) * 5'000);
  options.supervision.standby_workers = draw(0, 2);
  options.is_resilient = draw(1, 4) > 1;
  options.training = milliseconds(draw(100, 10'000));
  return options;
}

// Returns what should not have been.
std::string simulate(std::uint64_t seed, bool traces, Coverage& coverage) {
  SimulatedOptions options = draw_options(seed);
  options.traces = traces;
  SimulatedJob job(options, &coverage);
  // In quiet times, in one moment, or all the time.
  const int longest_ms = job.draw(1, 3) == 1 ? 200 : 5'000;
  for (int faults = job.draw(0, 20); faults > 0 && !job.has_ended(); --faults) {
    job.run_until(job.clock().now() + milliseconds(job.draw(0, longest_ms)));
    job.inject_any_fault();
  }
  job.calm_down();
  const auto patience = seconds(1'500);
  const bool ended = job.run_until(job.clock().now() + patience);
  if (!job.violation().empty()) return concat(job.violation(), "\n", job.describe());
  return ended ? "" : concat("the job does not end:\n", job.describe());
}

constexpr std::array kWorkerEvents = {
    "WorkerStarted", "KeepsState",  "StateFile",     "CallsFile",       "DeadlineExpired",
    "LeftGroup",     "TookRank",    "CannotRecover", "TrainingDone",    "LinkClosed",
    "RankNotRead",   "WorkerEnded", "GroupEmptied",  "WorkerSuspended", "SignalFateRead"};
constexpr std::array kJobEvents = {"GenerationReady",   "ViewChanged",   "DecisionDue",
                                   "StopSignal",        "NoticeSignal",  "HangExplained",
                                   "HangingPlacesRead", "RendezvousLost"};

// Why an event does not come in a state, or so seldom that few seeds have it. Empty: it comes.
std::string why_not(const std::string& state, const std::string& event) {
  const auto is_one_of = [](const std::string& name, std::initializer_list<const char*> names) {
    return std::ranges::find(names, name) != names.end();
  };
  const bool is_message =
      is_one_of(event, {"KeepsState", "StateFile", "CallsFile", "DeadlineExpired", "LeftGroup",
                        "TookRank", "CannotRecover", "TrainingDone"});
  if (state == "unprotected" && (is_message || event == "WorkerSuspended"))
    return "seldom: it announces nothing more, and few workers are in this state";
  if (state == "unprotected" && event == "SignalFateRead")
    return "seldom: few workers are in this state";
  if (event == "WorkerStarted" && !is_one_of(state, {"starting", "warming up"}))
    return "it is the answer to StartWorker";
  if (event == "RankNotRead" && state != "recovering") return "it is the answer to SendRank";
  if (event == "GroupEmptied" && state != "ended") return "it comes after WorkerEnded";
  if (state == "ended" && event != "GroupEmptied")
    return "all that a worker sent comes before WorkerEnded";
  if (is_one_of(event, {"StateFile", "CallsFile"}))
    return "programs send it as they start, and it changes nothing";
  if (is_one_of(state, {"warming up", "standby"}) && is_message)
    return "a standby worker is in no group";
  if (state == "starting" && event == "TrainingDone") return "KeepsState comes before it";
  if (state == "done" && event == "LeftGroup") return "it is in no group any more";
  if (state == "dismissed" && event == "WorkerSuspended") return "seldom: the state is short";
  if (state == "left" && event == "TrainingDone") return "it trains again in its next place";
  if (state == "hanging") return "seldom: it is killed, and changes nothing any more";
  if (is_one_of(state, {"dismissed", "stopping"}) && is_message)
    return "seldom: it was sent just before, and changes nothing any more";
  if (is_one_of(state, {"left", "recovering", "done"}) &&
      is_one_of(event, {"DeadlineExpired", "CannotRecover", "WorkerSuspended", "SignalFateRead"})) {
    return "seldom: the state is short";
  }
  if (state == "job beginning" && event != "GenerationReady") return "GenerationReady comes first";
  if (event == "GenerationReady" && !is_one_of(state, {"job beginning", "job between"}))
    return "it is the answer to AskForGeneration, or the first event";
  if (event == "HangExplained" &&
      is_one_of(state, {"job between", "job preempted", "job stopping"}))
    return "it is the answer to ExplainHang";
  if (event == "HangingPlacesRead" && is_one_of(state, {"job preempted", "job stopping"}))
    return "it is the answer to ReadHangingPlaces";
  if (state == "job finished") return "nothing comes any more, but for answers";
  if (state == "job between" &&
      is_one_of(event, {"RendezvousLost", "StopSignal", "NoticeSignal", "HangingPlacesRead"}))
    return "seldom: the phase is short";
  if (state == "job preempted") return "seldom: the next DecisionDue stops all workers";
  if (state == "job over") return "seldom: the phase lasts while a rank that hangs is searched";
  return "";
}

// Prints how often each event came in each state, and why not. Returns what has no reason.
std::string print_coverage(const Coverage& coverage) {
  std::string unexplained;
  const auto print = [&](const std::string& state, const auto& events) {
    for (const char* const event : events) {
      const auto seen = coverage.find({state, event});
      const std::string why = why_not(state, event);
      if (seen == coverage.end() && why.empty()) unexplained += concat(state, ": ", event, "\n");
      const std::string count = seen == coverage.end() ? "-" : std::to_string(seen->second);
      std::printf("%-14s %-17s %9s  %s\n", state.c_str(), event, count.c_str(),
                  seen == coverage.end() ? why.c_str() : "");
    }
  };
  for (int i = 0; i <= static_cast<int>(WorkerState::kEnded); ++i) {
    print(name_of(static_cast<WorkerState>(i)), kWorkerEvents);
  }
  for (int i = 0; i <= static_cast<int>(SupervisionPhase::kFinished); ++i) {
    print(concat("job ", name_of(static_cast<SupervisionPhase>(i))), kJobEvents);
  }
  return unexplained;
}

TEST(SupervisionSimulation, ManySeeds) {
  const SimulatedSeeds seeds = simulated_seeds(4'000, 500);
  Coverage coverage;
  for (std::uint64_t seed = seeds.first; seed < seeds.last; ++seed) {
    const std::string violation = simulate(seed, seeds.is_replay, coverage);
    ASSERT_EQ(violation, "") << "LOCKSTEP_SIMULATION_SEED=" << seed;
  }
  if (seeds.last - seeds.first >= 4'000) {
    EXPECT_EQ(print_coverage(coverage), "") << "not simulated, without a reason";
  }
}

}  // namespace
}  // namespace lockstep
