#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>

#include "lockstep/base/deadline.h"
#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/run_main.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

TEST(Deadline, PassesAtItsInstantAndNeverHasNegativeTimeLeft) {
  EXPECT_TRUE(Deadline::after(milliseconds(0)).passed());
  EXPECT_EQ(Deadline::after(milliseconds(-5)).remaining(), milliseconds(0));
  EXPECT_FALSE(Deadline::after(std::chrono::hours(1)).passed());
}

TEST(Env, NamesTheVariableAndTheValueItRefuses) {
  ::setenv("WORLD_SIZE", "2x", 1);
  try {
    env::integer(env::kWorldSize);
    FAIL() << "WORLD_SIZE=2x was accepted";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("WORLD_SIZE='2x'"), std::string::npos) << error.what();
  }
  ::setenv("WORLD_SIZE", "", 1);
  EXPECT_EQ(env::integer(env::kWorldSize), std::nullopt);
  ::setenv("WORLD_SIZE", "-3", 1);
  EXPECT_EQ(env::integer(env::kWorldSize), -3);
  ::unsetenv("WORLD_SIZE");
}

TEST(Env, SecondsArePositiveAndMayBeFractions) {
  ::setenv("LOCKSTEP_TIMEOUT_S", "0.25", 1);
  EXPECT_EQ(env::seconds(env::kTimeout), milliseconds(250));
  for (const char* bad : {"0", "-1", "nan", "inf", "1e300", "1 s", "soon"}) {
    ::setenv("LOCKSTEP_TIMEOUT_S", bad, 1);
    EXPECT_THROW(env::seconds(env::kTimeout), UsageError) << bad;
  }
  ::unsetenv("LOCKSTEP_TIMEOUT_S");
}

TEST(Env, EveryVariableHasHelp) {
  for (const env::Variable* variable : env::all()) {
    EXPECT_STRNE(variable->help, "") << variable->name;
    EXPECT_STRNE(variable->type, "") << variable->name;
  }
}

TEST(RunMain, TurnsExceptionsIntoExitCodes) {
  EXPECT_EQ(run_main([] { return 7; }), 7);
  EXPECT_EQ(run_main([]() -> int { throw UsageError("bad flag"); }), kExitUsage);
  EXPECT_EQ(run_main([]() -> int { throw PeerLost("rank 1 is gone"); }), kExitFailure);
  EXPECT_EQ(run_main([]() -> int { throw 3; }), kExitFailure);
}

TEST(RunMain, ReportsTypeMessageAndExitCodeInTheErrorFile) {
  const std::string file = testing::TempDir() + "lockstep_run_main_error.json";
  ::setenv("TORCHELASTIC_ERROR_FILE", file.c_str(), 1);
  EXPECT_EQ(run_main([]() -> int { throw UsageError("bad flag"); }), kExitUsage);
  ::unsetenv("TORCHELASTIC_ERROR_FILE");
  std::ifstream stream(file);
  const std::string text(std::istreambuf_iterator<char>(stream), {});
  std::remove(file.c_str());
  EXPECT_NE(text.find(R"("message":"UsageError: bad flag")"), std::string::npos) << text;
  EXPECT_NE(text.find(R"("errorCode":2)"), std::string::npos) << text;
}

TEST(SystemError, SaysWhatFailedWhyAndWhatToDo) {
  const SystemError error("write /tmp/x", ENOSPC, "free some space");
  EXPECT_STREQ(error.what(), "write /tmp/x: No space left on device; free some space");
  EXPECT_EQ(error.errno_value(), ENOSPC);
}

}  // namespace
}  // namespace lockstep
