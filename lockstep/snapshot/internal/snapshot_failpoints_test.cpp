// A save that fails, or whose process is killed, at every failpoint that it passes.
#include "lockstep/base/internal/failpoint.h"

#if defined(LOCKSTEP_FAILPOINTS)

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <optional>
#include <set>
#include <string>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/optim/adam.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/files/temporary_directory.h"
#include "lockstep/snapshot/internal/small_net.h"
#include "lockstep/snapshot/internal/snapshot_testing.h"
#include "lockstep/snapshot/snapshot_directory.h"

namespace lockstep::testing {
namespace {

/// As many writes as no save of the small network makes.
constexpr int kMoreThanAllWrites = 1000;

class SnapshotFailpoints : public ::testing::Test {
 protected:
  SnapshotFailpoints() {
    train(net_, optimizer_, 2);
    save();
    save();
  }
  ~SnapshotFailpoints() override { arm_failpoints(""); }

  void save() {
    SnapshotDirectory(directory_.path(), options_).save(*net_, optimizer_, {.step = last_ + 1});
    ++last_;
  }

  /// What saving throws where that goes wrong.
  std::optional<SystemError> error_of_save(const std::string& failpoints) {
    std::optional<SystemError> thrown;
    arm_failpoints(failpoints);
    try {
      save();
    } catch (const SystemError& error) {
      thrown.emplace(error);
    }
    arm_failpoints("");
    return thrown;
  }

  /// Whether a process is killed while it saves so.
  bool is_killed(const std::string& failpoints) {
    const pid_t saver = ::fork();
    if (saver == 0) {
      arm_failpoints(failpoints);
      save();
      ::_exit(0);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(saver, &status, 0), saver);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  }

  /// The newest snapshot, every bit of it as it was saved.
  std::int64_t newest() {
    SmallNet net;
    torch::optim::Adam optimizer(net->parameters(), 0.5);
    const auto resumed = SnapshotDirectory(directory_.path()).load_latest(*net, optimizer);
    EXPECT_TRUE(same_weights(net, net_));
    return resumed ? resumed->step : -1;
  }

  std::ptrdiff_t files() const {
    return std::distance(std::filesystem::directory_iterator(directory_.path()), {});
  }

  std::string next_file() const { return SnapshotName{0, last_ + 1}.file_name(); }

  TemporaryDirectory directory_{std::filesystem::temp_directory_path(), "snapshot-failpoints-"};
  SmallNet net_;
  torch::optim::Adam optimizer_{net_->parameters(), 0.01};
  std::int64_t last_ = 0;
  SnapshotDirectoryOptions options_;
};

TEST_F(SnapshotFailpoints, EveryWriteThatFailsIsNamedAndLeavesTheSnapshotsBefore) {
  int writes = 1;
  for (; writes < kMoreThanAllWrites; ++writes) {
    const std::string file = next_file();
    const auto error = error_of_save(concat("file.write:", writes, ":eio"));
    if (!error) break;
    ASSERT_NE(std::string(error->what()).find(file), std::string::npos) << error->what();
    ASSERT_EQ(error->errno_value(), EIO) << error->what();
    ASSERT_EQ(files(), 2) << "a half-written file stays";
    ASSERT_EQ(newest(), last_);
  }
  EXPECT_GT(writes, 20);
  EXPECT_LT(writes, kMoreThanAllWrites);
}

TEST_F(SnapshotFailpoints, EveryOtherCallThatFailsIsNamedAndLeavesTheSnapshotsBefore) {
  for (const char* const call : {"file.create", "file.sync", "file.rename"}) {
    const std::string file = next_file();
    const auto error = error_of_save(concat(call, ":1:eio"));
    ASSERT_TRUE(error) << call;
    EXPECT_NE(std::string(error->what()).find(file), std::string::npos) << error->what();
    EXPECT_EQ(error->errno_value(), EIO) << call << ": " << error->what();
    EXPECT_EQ(files(), 2);
    EXPECT_EQ(newest(), last_);
  }
}

TEST_F(SnapshotFailpoints, AnUnsyncedDirectoryIsAnErrorAndWhatIsThereIsWhole) {
  const auto error = error_of_save("file.sync_directory:1:eio");
  ASSERT_TRUE(error);
  EXPECT_NE(std::string(error->what()).find(directory_.path().string()), std::string::npos)
      << error->what();
  EXPECT_EQ(newest(), last_ + 1);
}

TEST_F(SnapshotFailpoints, AnOldSnapshotThatCannotBeDeletedIsSaid) {
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(error_of_save("save.delete:1:eio"));
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("cannot delete the old snapshot"), std::string::npos) << said;
  EXPECT_EQ(files(), 3);
  save();
  EXPECT_EQ(files(), 2) << "the next save deletes it";
}

TEST_F(SnapshotFailpoints, EveryShortWriteIsGoneOnWith) {
  int writes = 1;
  for (bool is_passed = true; is_passed; ++writes) {
    ASSERT_LT(writes, kMoreThanAllWrites);
    ::testing::internal::CaptureStderr();
    ASSERT_FALSE(error_of_save(concat("file.write:", writes, ":short")));
    is_passed = !::testing::internal::GetCapturedStderr().empty();
    ASSERT_EQ(newest(), last_);
  }
  EXPECT_GT(writes, 20);
}

TEST_F(SnapshotFailpoints, AProcessThatIsKilledAtAnyStageLosesNoSnapshot) {
  const std::set<std::string_view> with_the_new_one = {"file.renamed", "file.sync_directory",
                                                       "file.done",    "save.written",
                                                       "save.delete",  "save.deleted"};
  for (const FailpointInfo& point : kFailpoints) {
    if (!point.name.starts_with("file.") && !point.name.starts_with("save.")) continue;
    const std::int64_t before = last_;
    ASSERT_TRUE(is_killed(concat(point.name, ":1:kill"))) << point.name;
    last_ = newest();
    EXPECT_EQ(last_ - before, with_the_new_one.count(point.name)) << point.name;
    EXPECT_LE(files(), 3) << point.name;
    save();
    EXPECT_EQ(files(), 2) << point.name << ": what the killed one left stays";
  }
}

TEST_F(SnapshotFailpoints, AProcessThatIsKilledAtAnyWriteLosesNoSnapshot) {
  int writes = 1;
  while (is_killed(concat("file.write:", writes, ":kill"))) {
    ASSERT_EQ(newest(), last_);
    ASSERT_LT(++writes, kMoreThanAllWrites);
  }
  EXPECT_GT(writes, 20);
}

TEST_F(SnapshotFailpoints, AShardedSaveThatIsKilledAtAnyStageLosesNoSnapshot) {
  options_.sharded_saves = true;
  save();
  int kills = 0;
  for (const FailpointInfo& point : kFailpoints) {
    if (!point.name.starts_with("file.") && !point.name.starts_with("save.")) continue;
    int times = 1;
    while (is_killed(concat(point.name, ":", times, ":kill"))) {
      const std::int64_t found = newest();
      ASSERT_GE(found, last_) << point.name << " " << times;
      ASSERT_LE(found, last_ + 1) << point.name << " " << times;
      last_ = found;
      ASSERT_LE(files(), 4) << point.name;
      ASSERT_LT(++times, kMoreThanAllWrites);
      ++kills;
    }
    last_ = newest();
    save();
    EXPECT_EQ(files(), 2) << point.name << ": what the killed ones left stays";
  }
  EXPECT_GT(kills, 40);
}

}  // namespace
}  // namespace lockstep::testing

#endif
