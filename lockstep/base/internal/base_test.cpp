#include <chrono>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/deadline.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/base/internal/text.h"

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

TEST(CommaList, KeepsEmptyEntriesButForTheOneBehindTheLastComma) {
  using Entries = std::vector<std::string>;
  EXPECT_EQ(comma_list(""), Entries());
  EXPECT_EQ(comma_list("a,,b"), (Entries{"a", "", "b"}));
  EXPECT_EQ(comma_list(",a,"), (Entries{"", "a"}));
  EXPECT_EQ(comma_list("a"), Entries{"a"});
}

TEST(SizeText, HasThreeDigitsAndAUnit) {
  EXPECT_EQ(size_text(0), "0 B");
  EXPECT_EQ(size_text(999), "999 B");
  EXPECT_EQ(size_text(1000), "1.00 kB");
  EXPECT_EQ(size_text(9'994), "9.99 kB");
  EXPECT_EQ(size_text(9'996), "10.0 kB");
  EXPECT_EQ(size_text(46'800'000), "46.8 MB");
  EXPECT_EQ(size_text(999'499), "999 kB");
  EXPECT_EQ(size_text(999'500), "1.00 MB");
  EXPECT_EQ(size_text(1e18), "1000 PB");
}

TEST(OperationError, ComposesItsMessageOfItsFields) {
  const ErrorFields fields{
      .operation = "all_reduce", .group = "default", .own_rank = 0, .sequence = 87, .ranks = {2}};
  const PeerLost error(fields, "rank 2 ended");
  EXPECT_STREQ(error.what(), "all_reduce number 87 of group 'default' on rank 0: rank 2 ended");
  EXPECT_EQ(error.rank(), 2);
  EXPECT_EQ(error.fields().sequence, 87U);
  EXPECT_STREQ(TimeoutError({.operation = "rpc to 'a'"}, "late").what(), "rpc to 'a': late");
  EXPECT_STREQ(CommError("in words of its own", fields).what(), "in words of its own");
}

TEST(OperationError, HasNoRankWhereNoneOrSeveralAreKnown) {
  EXPECT_EQ(PeerLost("a peer is gone").rank(), std::nullopt);
  EXPECT_TRUE(PeerLost("a peer is gone").fields().operation.empty());
  const TimeoutError several({.operation = "barrier", .ranks = {1, 3}}, "late");
  EXPECT_EQ(several.rank(), std::nullopt);
  EXPECT_EQ(several.fields().ranks, (std::vector<int>{1, 3}));
}

TEST(SystemError, SaysWhatFailedWhyAndWhatToDo) {
  const SystemError error("write /tmp/x", ENOSPC, "free some space");
  EXPECT_STREQ(error.what(), "write /tmp/x: No space left on device; free some space");
  EXPECT_EQ(error.errno_value(), ENOSPC);
}

}  // namespace
}  // namespace lockstep
