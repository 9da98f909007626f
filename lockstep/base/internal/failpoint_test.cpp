#include "lockstep/base/internal/failpoint.h"

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/environment_testing.h"

namespace lockstep {
namespace {

TEST(FailpointList, NamesEachOnce) {
  std::set<std::string_view> names;
  for (const FailpointInfo& point : kFailpoints) {
    EXPECT_TRUE(names.insert(point.name).second) << point.name;
    EXPECT_EQ(point.name.find_first_of(":, "), std::string_view::npos) << point.name;
  }
}

#if !defined(LOCKSTEP_FAILPOINTS)

TEST(Failpoint, IsNothingWhereItIsLeftOut) {
  const EnvironmentForTest environment(
      EnvironmentForTest::Values{{"LOCKSTEP_FAILPOINT", "file.write:1:kill"}});
  failpoint("file.created");
  EXPECT_FALSE(failpoint_fails("file.sync"));
  EXPECT_EQ(failpoint_at_write("file.write", 5), 5u);
}

#else

class FailpointTest : public ::testing::Test {
 protected:
  ~FailpointTest() override { arm_failpoints(""); }

  static std::string error_of(const std::string& text) {
    try {
      arm_failpoints(text);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no error";
  }
};

TEST_F(FailpointTest, CallsFailTheNthTime) {
  arm_failpoints("file.sync:2:eio");
  EXPECT_FALSE(failpoint_fails("file.sync"));
  EXPECT_FALSE(failpoint_fails("file.rename"));
  errno = 0;
  EXPECT_TRUE(failpoint_fails("file.sync"));
  EXPECT_EQ(errno, EIO);
  EXPECT_FALSE(failpoint_fails("file.sync"));
}

TEST_F(FailpointTest, WritesFailOrAreShort) {
  arm_failpoints("file.write:1:short,file.write:3:eio");
  EXPECT_EQ(failpoint_at_write("file.write", 5), 3u);
  EXPECT_EQ(failpoint_at_write("file.write", 2), 2u);
  errno = 0;
  EXPECT_FALSE(failpoint_at_write("file.write", 2));
  EXPECT_EQ(errno, EIO);
  arm_failpoints("file.write:1:short");
  EXPECT_EQ(failpoint_at_write("file.write", 1), 1u) << "nothing written would be no progress";
}

TEST_F(FailpointTest, KillsAtTheNthPass) {
  EXPECT_EXIT(
      {
        arm_failpoints("step.begin:3:kill");
        failpoint("step.begin");
        failpoint("step.begin");
        failpoint("step.made");
        ::write(STDERR_FILENO, "twice. ", 7);
        failpoint("step.begin");
        ::_exit(1);
      },
      ::testing::KilledBySignal(SIGKILL), "twice. .*failpoint step.begin, passed 3 times: killed");
}

TEST_F(FailpointTest, StopsUntilItIsContinued) {
  const pid_t child = ::fork();
  if (child == 0) {
    arm_failpoints("step.begin:1:stop");
    failpoint("step.begin");
    ::_exit(7);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  EXPECT_TRUE(WIFSTOPPED(status));
  ::kill(child, SIGCONT);
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

TEST_F(FailpointTest, IsOfOneRank) {
  const EnvironmentForTest environment(EnvironmentForTest::Values{{"RANK", "2"}});
  arm_failpoints("file.sync:1:eio:1,file.rename:1:eio:2,file.create:1:eio:*");
  EXPECT_FALSE(failpoint_fails("file.sync"));
  EXPECT_TRUE(failpoint_fails("file.rename"));
  EXPECT_TRUE(failpoint_fails("file.create"));
}

TEST_F(FailpointTest, FollowsTheRankThatAProcessHas) {
  arm_failpoints("file.sync:1:eio:1");
  {
    const EnvironmentForTest environment(EnvironmentForTest::Values{{"RANK", "2"}});
    EXPECT_FALSE(failpoint_fails("file.sync"));
  }
  const EnvironmentForTest environment(EnvironmentForTest::Values{{"RANK", "1"}});
  EXPECT_TRUE(failpoint_fails("file.sync"));
}

TEST_F(FailpointTest, IsOfProcessesOfTheFirstGenerationUnlessAnotherIsNamed) {
  const EnvironmentForTest environment(
      EnvironmentForTest::Values{{"TORCHELASTIC_RESTART_COUNT", "1"}});
  arm_failpoints(
      "file.sync:1:eio,file.create:1:eio:*:0,file.rename:1:eio:*:1,file.sync_directory:1:eio:*:*");
  EXPECT_FALSE(failpoint_fails("file.sync"));
  EXPECT_FALSE(failpoint_fails("file.create"));
  EXPECT_TRUE(failpoint_fails("file.rename"));
  EXPECT_TRUE(failpoint_fails("file.sync_directory"));
}

TEST_F(FailpointTest, WhatCannotBeUnderstoodIsSaidInOneLine) {
  for (const auto& [text, reason] : std::initializer_list<std::pair<const char*, const char*> >{
           {"list", "'list' is not name:n:action"},
           {"step.begin:1", "is not name:n:action"},
           {"step.begin:1:kill:0:0:0", "is not name:n:action"},
           {"step:1:kill", "'step:1:kill' names no failpoint"},
           {"step.begin:0:kill", "needs a count of at least 1"},
           {"step.begin:one:kill", "needs a count of at least 1"},
           {"step.begin:1:die", "needs kill, stop, eio or short"},
           {"step.begin:1:eio", "has an action that this failpoint does not support"},
           {"file.sync:1:short", "has an action that this failpoint does not support"},
           {"step.begin:1:kill:-1", "needs a rank"},
           {"step.begin:1:kill:0:", "needs a generation"},
           {"file.sync:1:eio,,", "'' is not name:n:action"}}) {
    const std::string error = error_of(text);
    EXPECT_NE(error.find(reason), std::string::npos) << text << ": " << error;
    EXPECT_NE(error.find("LOCKSTEP_FAILPOINT"), std::string::npos) << error;
    EXPECT_NE(error.find("launch.placed"), std::string::npos) << "names them all: " << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
}

TEST_F(FailpointTest, EveryPassIsCountedArmedOrNot) {
  const std::size_t index = Failpoint("file.sync").index();
  const std::vector<std::int64_t> before = failpoint_passes();
  arm_failpoints("file.sync:2:eio");
  for (int pass = 0; pass < 3; ++pass) EXPECT_EQ(failpoint_fails("file.sync"), pass == 1);
  std::vector<std::int64_t> expected = before;
  expected[index] += 3;
  EXPECT_EQ(failpoint_passes(), expected);
}

TEST_F(FailpointTest, OneThatCannotBeUnderstoodChangesNothing) {
  arm_failpoints("file.sync:1:eio");
  EXPECT_NE(error_of("file.rename:1:eio,nonsense"), "no error");
  EXPECT_FALSE(failpoint_fails("file.rename"));
  EXPECT_TRUE(failpoint_fails("file.sync"));
}

#endif

}  // namespace
}  // namespace lockstep
