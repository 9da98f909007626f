#include "lockstep/program/run_main.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

TEST(RunMain, TurnsExceptionsIntoExitCodes) {
  EXPECT_EQ(run_main([] { return 7; }), 7);
  EXPECT_EQ(run_main([]() -> int { throw UsageError("bad flag"); }), kExitUsage);
  EXPECT_EQ(run_main([]() -> int { throw PeerLost("rank 1 is gone"); }), kExitFailure);
  EXPECT_EQ(run_main([]() -> int { throw 3; }), kExitFailure);
}

// What `body` leaves in the error file.
std::string error_file_of(const std::function<int()>& body, int expected_exit_code) {
  const std::string file = testing::TempDir() + "lockstep_run_main_error.json";
  ::setenv("TORCHELASTIC_ERROR_FILE", file.c_str(), 1);
  EXPECT_EQ(run_main(body), expected_exit_code);
  ::unsetenv("TORCHELASTIC_ERROR_FILE");
  std::ifstream stream(file);
  const std::string text(std::istreambuf_iterator<char>(stream), {});
  std::remove(file.c_str());
  return text;
}

TEST(RunMain, ReportsTypeMessageAndExitCodeInTheErrorFile) {
  const std::string text = error_file_of([]() -> int { throw UsageError("bad flag"); }, kExitUsage);
  EXPECT_NE(text.find(R"("message":"UsageError: bad flag")"), std::string::npos) << text;
  EXPECT_NE(text.find(R"("errorCode":2)"), std::string::npos) << text;
  EXPECT_NE(text.find(R"("fields":{})"), std::string::npos) << text;
}

TEST(RunMain, ReportsFieldsInTheErrorFile) {
  const auto body = []() -> int {
    throw PeerLost({.operation = "recv",
                    .group = "stages",
                    .own_rank = 0,
                    .sequence = 7,
                    .timeout = std::chrono::seconds(2),
                    .ranks = {3}},
                   "a peer is gone");
  };
  const std::string text = error_file_of(body, kExitFailure);
  EXPECT_NE(text.find(R"("fields":{"group":"stages","operation":"recv","own_rank":0,"ranks":[3],)"
                      R"("sequence":7,"timeout_ms":2000})"),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace lockstep
