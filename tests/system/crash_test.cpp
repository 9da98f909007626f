// What `lockstep run` tells of workers that crash: tests/workers/crash_worker.cpp.
#include <csignal>
#include <regex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/internal/concat.h"
#include "tests/system/lockstep_process.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// Dumps of memory would fill the disk; a shell's limit reaches the workers.
std::vector<std::string> run_crash(const std::string& way, std::vector<std::string> flags = {}) {
  return run_script(std::move(flags),
                    concat("ulimit -c 0; exec ", LOCKSTEP_CRASH_WORKER, " ", way));
}

std::string report_of(const std::string& way, int status) {
  const auto result = run_lockstep(run_crash(way));
  EXPECT_EQ(result.status, status) << way << ": " << result.err;
  return result.err.substr(
      std::min(result.err.find("lockstep: job failed: rank"), result.err.size()));
}

// How the one worker failed whose failure ends the job.
std::string cause_in(const std::string& report) {
  const auto failures = failures_in(report);
  return failures.size() == 1 && failures[0].is_first ? failures[0].how : "not one: " + report;
}

// The calls of the report's stack, without where they are.
std::vector<std::string> functions_in(const std::string& report) {
  std::vector<std::string> functions;
  const std::regex call("lockstep:   (?:stack:  |        )(.*?)(?: at .*| in .*)?");
  std::istringstream stream(report);
  for (std::string line; std::getline(stream, line);) {
    std::smatch parts;
    if (std::regex_match(line, parts, call)) functions.push_back(parts[1]);
  }
  return functions;
}

struct Crash {
  const char* way;
  int signal;
  const char* cause;  ///< the first line's begin
  const char* place;  ///< and its end
};

// For readable names of the tests.
void PrintTo(const Crash& crash, std::ostream* stream) {
  *stream << crash.way;
}

// Empty where workers of this build can be reported in full.
std::string reason_to_skip() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return "the sanitizer has handlers of its own, which stay";
#elif !defined(LOCKSTEP_HAS_LIBBACKTRACE)
  return "built without libbacktrace: stacks have no names";
#else
  return "";
#endif
}

struct CrashReportOfAJob : testing::Test {
  void SetUp() override {
    if (!reason_to_skip().empty()) GTEST_SKIP() << reason_to_skip();
  }
};

struct CrashTest : CrashReportOfAJob, testing::WithParamInterface<Crash> {};

TEST_P(CrashTest, TheFirstLineNamesCauseFunctionAndLine) {
  const Crash& crash = GetParam();
  const std::string report = report_of(crash.way, 128 + crash.signal);
  const std::string cause = cause_in(report);
  EXPECT_THAT(cause, StartsWith(crash.cause));
  EXPECT_TRUE(
      std::regex_search(cause, std::regex(concat(crash.place, " crash_worker.cpp:[0-9]+(;|$)"))))
      << report;
  EXPECT_THAT(report, HasSubstr("lockstep:   calls:  in all_reduce number 87 of group 'default'; "
                                "before it broadcast number 86 of group 'default'\n"));
  EXPECT_THAT(report, Not(HasSubstr("gdb")));
}

INSTANTIATE_TEST_SUITE_P(
    Ways, CrashTest,
    testing::Values(
        Crash{"segv", SIGSEGV, "killed by SIGSEGV at address 0x0 in ",
              "training::write_to\\(int\\*\\)"},
        Crash{"jump", SIGSEGV, "killed by SIGSEGV at address 0x0 in ",
              "training::call_nothing\\(\\)"},
        Crash{"overflow", SIGSEGV, "killed by SIGSEGV (stack overflow) in ",
              "training::recurse\\(int\\)"},
        Crash{"bus", SIGBUS, "killed by SIGBUS at address 0x", "training::write_to\\(int\\*\\)"},
        Crash{"fpe", SIGFPE, "killed by SIGFPE (integer division by zero) in ",
              "training::divide\\(\\)"},
        Crash{"ill", SIGILL, "killed by SIGILL at address 0x",
              "training::run_illegal_instruction\\(\\)"},
        Crash{"abort", SIGABRT, "killed by SIGABRT in ", "training::give_up\\(\\)"},
        Crash{"raise", SIGSEGV, "killed by SIGSEGV in ", "training::crash_in\\(.*\\)"},
        // malloc faults, or finds the fault, with its lock held.
        Crash{"heap", SIGSEGV, "killed by SIGSEGV at address 0x", "training::break_the_heap\\(\\)"},
        Crash{"double_free", SIGABRT, "killed by SIGABRT (free(): double free", "free_twice\\(\\)"},
        Crash{"thread", SIGSEGV, "killed by SIGSEGV at address 0x0 in ",
              "training::write_to\\(int\\*\\)"},
        Crash{"thread_exception", SIGABRT,
              "killed by SIGABRT: std::out_of_range: no sample \"7\", uncaught in ",
              "training::load_sample\\(\\)"},
        Crash{
            "not_joined", SIGABRT,
            "killed by SIGABRT: std::terminate without an exception (often a std::thread that was "
            "not joined) in ",
            "training::crash_in\\(.*\\)"},
        Crash{"outside", SIGABRT,
              "killed by SIGABRT: std::out_of_range: no sample \"7\", uncaught in ",
              "training::load_sample\\(\\)"}),
    [](const auto& test) { return std::string(test.param.way); });

TEST_F(CrashReportOfAJob, TheStackLeadsFromTheFaultToMain) {
  const std::string report = report_of("bus", 128 + SIGBUS);
  const std::vector<std::string> functions = functions_in(report);
  ASSERT_GE(functions.size(), 4U) << report;
  EXPECT_EQ(functions[0], "training::write_to(int*)");
  EXPECT_EQ(functions[1], "training::read_past_the_end_of_a_file()");
  EXPECT_EQ(functions[2], "training::crash_in(std::string const&)");
  EXPECT_EQ(functions.back(), "main") << report;
  EXPECT_THAT(report, Not(HasSubstr("on_signal")));
  EXPECT_THAT(report, HasSubstr("crash_worker.cpp:"));
}

TEST_F(CrashReportOfAJob, AnotherThreadIsNamed) {
  EXPECT_THAT(report_of("thread", 128 + SIGSEGV),
              HasSubstr("thread: 'crash_worker' (not the main thread)"));
  EXPECT_THAT(report_of("segv", 128 + SIGSEGV), Not(HasSubstr("thread:")));
}

TEST_F(CrashReportOfAJob, TheFirstOfSeveralRanksIsNamed) {
  const auto result = run_lockstep(run_crash("segv 1", {"--nproc-per-node=2"}));
  EXPECT_EQ(result.status, 128 + SIGSEGV);
  EXPECT_EQ(failures_in(result.err).at(0).rank, 1);
  EXPECT_THAT(cause_in(result.err), HasSubstr("in training::write_to(int*) crash_worker.cpp:"));
  EXPECT_THAT(result.err, HasSubstr("others: rank 0: stopped by SIGTERM\n"));
}

TEST_F(CrashReportOfAJob, RestartsNameTheCauseToo) {
  const auto result = run_lockstep(run_crash("segv", {"--max-restarts=1"}));
  const auto failures = failures_in(result.err);
  ASSERT_EQ(failures.size(), 2U) << result.err;
  EXPECT_THAT(failures[0].how, StartsWith("killed by SIGSEGV at address 0x0 in "
                                          "training::write_to(int*) crash_worker.cpp:"));
  EXPECT_EQ(failures[0].restart, 1);
}

TEST_F(CrashReportOfAJob, TheErrorFileHasAllOfIt) {
  const TemporaryDirectory logs(fs::temp_directory_path(), "lockstep_test_");
  run_lockstep(run_crash("thread_exception", {"--log-dir=" + logs.path().string()}));
  nlohmann::json message;
  for (const auto& entry : fs::recursive_directory_iterator(logs.path())) {
    if (entry.path().filename() != "error.json") continue;
    message = nlohmann::json::parse(read_text(entry.path()))["message"];
  }
  EXPECT_THAT(message["message"], StartsWith("std::out_of_range: no sample \"7\", uncaught in "
                                             "training::load_sample() crash_worker.cpp:"));
  EXPECT_EQ(message["errorCode"], 128 + SIGABRT);
  EXPECT_THAT(message["extraInfo"]["timestamp"], testing::MatchesRegex("[0-9]+"));
  EXPECT_THAT(message["extraInfo"]["py_callstack"].get<std::string>(),
              HasSubstr("\ntraining::load_sample() at "));
  const nlohmann::json& crash = message["extraInfo"]["crash"];
  EXPECT_EQ(crash["signal"], SIGABRT);
  EXPECT_EQ(crash["collectives"].size(), 2U);
  EXPECT_EQ(crash["collectives"][0]["sequence"], 87);
  EXPECT_EQ(crash["collectives"][0]["ended"], false);
  EXPECT_EQ(crash["collectives"][1]["ended"], true);
  bool found = false;
  for (const auto& frame : crash["frames"]) {
    for (const auto& line : frame["lines"]) {
      found = found || line["function"] == "training::load_sample()";
    }
  }
  EXPECT_TRUE(found) << crash;
}

TEST_F(CrashReportOfAJob, AnErrorThatWasToldBeforeStays) {
  const std::string report = report_of("error_then_crash", 128 + SIGSEGV);
  EXPECT_THAT(cause_in(report), StartsWith("killed by SIGSEGV: UsageError: no such flag"));
  EXPECT_EQ(cause_in(report_of("own_error", 2)), "exited with code 2: UsageError: no such flag");
}

TEST_F(CrashReportOfAJob, AHandlerOfTheProgramsOwnIsLeftAlone) {
  const auto result = run_lockstep(run_crash("own_handler"));
  EXPECT_EQ(result.status, 7);
  EXPECT_EQ(result.out, "own handler\n");
  EXPECT_EQ(cause_in(result.err), "exited with code 7");
}

TEST_F(CrashReportOfAJob, AForkedProcessIsNotTheWorker) {
  EXPECT_EQ(cause_in(report_of("fork", 3)), "exited with code 3");
}

TEST_F(CrashReportOfAJob, WhatFollowsAnotherRanksEndIsAConsequence) {
  // Rank 0 crashes of what it hears of rank 1, which is only then on its way out.
  const TemporaryDirectory directory(fs::temp_directory_path(), "lockstep_test_");
  const std::string ready = (directory.path() / "ready").string();
  const auto result = run_lockstep(run_script(
      {"--nproc-per-node=2"},
      concat("ulimit -c 0; if [ $RANK = 0 ]; then while ! [ -e ", ready, " ]; do :; done; exec ",
             LOCKSTEP_CRASH_WORKER,
             " peer_lost; fi; trap 'echo \"{\\\"message\\\":\\\"ValueError: bad\\\"}\" > "
             "$TORCHELASTIC_ERROR_FILE; exit 5' TERM; touch ",
             ready, "; while :; do sleep 0.01; done")));
  EXPECT_EQ(failures_in(result.err).at(0).rank, 1);
  EXPECT_EQ(cause_in(result.err), "exited with code 5: ValueError: bad");
  EXPECT_THAT(result.err, HasSubstr("others: rank 0: killed by SIGABRT\n"));
}

TEST_F(CrashReportOfAJob, OtherProgramsHaveTodaysReport) {
  const auto result = run_lockstep(run_script({}, "ulimit -c 0; kill -SEGV $$"));
  EXPECT_EQ(result.status, 128 + SIGSEGV);
  EXPECT_EQ(cause_in(result.err), "killed by SIGSEGV");
  EXPECT_THAT(result.err, HasSubstr("hint:   to see where: ulimit -c unlimited"));
  EXPECT_THAT(result.err, Not(HasSubstr("stack:")));
}

}  // namespace
}  // namespace lockstep
