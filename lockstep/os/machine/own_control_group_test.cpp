#include <csignal>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/os/machine/control_groups.h"
#include "lockstep/os/machine/system_root_testing.h"
#include "lockstep/os/process/child_process.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

class PlaceOfControlGroupTest : public SystemRootTest {
 protected:
  std::string place() const {
    return place_for_control_group("mine", root()).lexically_relative(root()).string();
  }
};

TEST_F(PlaceOfControlGroupTest, IsBelowTheOwnOne) {
  write("proc/self/cgroup", "0::/user/job\n");
  write("sys/fs/cgroup/user/job/cgroup.procs", "");
  EXPECT_EQ(place(), "sys/fs/cgroup/user/job/mine");
}

TEST_F(PlaceOfControlGroupTest, IsInVersion2BesideVersion1) {
  write("proc/self/cgroup", "4:memory:/other\n1:name=systemd:/session\n0::/session\n");
  write("sys/fs/cgroup/unified/cgroup.procs", "");
  write("sys/fs/cgroup/unified/session/cgroup.procs", "");
  EXPECT_EQ(place(), "sys/fs/cgroup/unified/session/mine");
}

TEST_F(PlaceOfControlGroupTest, IsNowhereInVersion1Alone) {
  write("proc/self/cgroup", "4:memory:/other\n");
  write("sys/fs/cgroup/memory/other/cgroup.procs", "");
  EXPECT_EQ(place(), "");
}

TEST_F(PlaceOfControlGroupTest, IsNowhereWhereTheGroupIsNotShown) {
  write("proc/self/cgroup", "0::/elsewhere\n");
  EXPECT_EQ(place(), "");
}

TEST_F(PlaceOfControlGroupTest, IsNowhereWhereProcessesMayNotBeMoved) {
  write("proc/self/cgroup", "0::/job\n");
  write("sys/fs/cgroup/job/cgroup.procs", "");
  fs::permissions(root(), fs::perms::all);
  fs::permissions(root() / "sys/fs/cgroup/job", fs::perms::all);
  fs::permissions(root() / "sys/fs/cgroup/job/cgroup.procs", fs::perms(0444));
  constexpr uid_t kNobody = 65534;
  const auto look_as_nobody = [&] {
    if (::geteuid() == 0 && ::setuid(kNobody) != 0) ::_exit(2);
    ::_exit(place().empty() ? 0 : 1);
  };
  EXPECT_EXIT(look_as_nobody(), testing::ExitedWithCode(0), "");
}

class OwnControlGroupTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!group_.valid()) GTEST_SKIP() << "no control group may be made here";
  }
  void TearDown() override { kill_control_group(place_); }
  pid_t start_sleep() const {
    return spawn_process(
        {.path = "/bin/sleep", .arguments = {"sleep", "1000"}, .control_group = group_.get()});
  }

  const fs::path place_ = place_for_control_group(concat("lockstep-test-", ::getpid()));
  const UniqueFd group_ = make_control_group(place_);
};

TEST_F(OwnControlGroupTest, IsKilledWithAllThatIsInIt) {
  const pid_t child = start_sleep();
  int status = 0;
  kill_control_group(place_);
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
  EXPECT_FALSE(fs::exists(place_));
}

TEST_F(OwnControlGroupTest, WhatIsInItGoesOnWhenItIsDissolved) {
  const pid_t child = start_sleep();
  dissolve_control_group(place_);
  EXPECT_FALSE(fs::exists(place_));
  EXPECT_EQ(::waitpid(child, nullptr, WNOHANG), 0);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace lockstep
