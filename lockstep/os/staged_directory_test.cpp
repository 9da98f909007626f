#include "lockstep/os/staged_directory.h"

#include <csignal>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/failpoint.h"
#include "lockstep/os/temporary_directory.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Existing = StagedDirectory::Existing;

class StagedDirectoryTest : public testing::Test {
 protected:
  static void put(const fs::path& folder, const std::string& content) {
    std::ofstream(folder / "file") << content;
  }
  std::string content() const {
    std::ostringstream text;
    text << std::ifstream(target_ / "file").rdbuf();
    return text.str();
  }
  // Of the parent of the target.
  std::size_t entries() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(target_.parent_path()), fs::directory_iterator()));
  }

  const TemporaryDirectory directory_{fs::temp_directory_path(), "lockstep-staged-"};
  const fs::path target_ = directory_.path() / "sets" / "photos";
};

TEST_F(StagedDirectoryTest, TakesThePathWhenItIsWhole) {
  {
    StagedDirectory staged(target_);
    put(staged.path(), "new");
    EXPECT_FALSE(fs::exists(target_));
    EXPECT_TRUE(staged.commit(Existing::kKeep));
  }
  EXPECT_EQ(content(), "new");
  EXPECT_EQ(entries(), 1U);
}

TEST_F(StagedDirectoryTest, LeavesNothingWhenItIsGivenUp) {
  {
    const StagedDirectory staged(target_.string() + "/");
    put(staged.path(), "half");
  }
  EXPECT_EQ(entries(), 0U);
}

TEST_F(StagedDirectoryTest, KeepsOrReplacesWhatIsThere) {
  fs::create_directories(target_);
  const auto commit = [&](const std::string& text, Existing existing) {
    StagedDirectory staged(target_);
    put(staged.path(), text);
    return staged.commit(existing);
  };
  EXPECT_TRUE(commit("first", Existing::kKeep)) << "an empty one is as good as none";
  EXPECT_FALSE(commit("second", Existing::kKeep));
  EXPECT_EQ(content(), "first");
  EXPECT_TRUE(commit("third", Existing::kReplace));
  EXPECT_EQ(content(), "third");
  EXPECT_EQ(entries(), 1U);
}

TEST_F(StagedDirectoryTest, RemovesWhatAKilledMakerLeft) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const StagedDirectory staged(target_);
    put(staged.path(), "half");
    _exit(0);  // No destructor runs, as after a kill.
  }
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  ASSERT_EQ(entries(), 1U);
  const StagedDirectory other(target_.parent_path() / "others");
  EXPECT_EQ(entries(), 2U) << "another path's";
  StagedDirectory staged(target_);
  EXPECT_EQ(entries(), 2U) << "the two that live";
  const StagedDirectory at_once(target_);
  EXPECT_EQ(entries(), 3U) << "a living one stays";
}

TEST_F(StagedDirectoryTest, RefusesAFileInTheWay) {
  fs::create_directories(target_.parent_path());
  std::ofstream(target_.string()) << "a file";
  StagedDirectory staged(target_);
  EXPECT_THROW(staged.commit(Existing::kReplace), SystemError);
  EXPECT_TRUE(fs::is_regular_file(target_));
}

#if defined(LOCKSTEP_FAILPOINTS)

class StagedDirectoryFailpoints : public StagedDirectoryTest {
 protected:
  StagedDirectoryFailpoints() {
    fs::create_directories(target_);
    put(target_, "old");
  }

  // A process that replaces the target and passes these failpoints.
  pid_t start_replacing(const std::string& failpoints) {
    const pid_t child = fork();
    if (child != 0) return child;
    arm_failpoints(failpoints);
    StagedDirectory staged(target_);
    put(staged.path(), "new");
    staged.commit(Existing::kReplace);
    _exit(0);
  }
};

TEST_F(StagedDirectoryFailpoints, LeaveTheOldOrTheNewWhereverTheMakerIsKilled) {
  const std::string in_two = "directory.exchange:1:eio,";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"directory.flushed:1:kill", "old"},        {"directory.exchange:1:kill", "old"},
      {"directory.exchanged:1:kill", "new"},      {"directory.done:1:kill", "new"},
      {in_two + "directory.moved:1:kill", "old"}, {in_two + "directory.replaced:1:kill", "new"},
      {in_two + "directory.done:1:kill", "new"},
  };
  for (const auto& [failpoints, expected] : cases) {
    SCOPED_TRACE(failpoints);
    put(target_, "old");
    const pid_t child = start_replacing(failpoints);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the failpoint was not passed";
    const bool is_away = failpoints.find("moved") != std::string::npos;
    EXPECT_EQ(content(), is_away ? "" : expected);
    StagedDirectory::settle(target_);
    EXPECT_EQ(content(), expected);
    EXPECT_EQ(entries(), 1U);
  }
}

TEST_F(StagedDirectoryFailpoints, LeaveAlonePathsThatALivingMakerReplaces) {
  const pid_t child = start_replacing("directory.exchange:1:eio,directory.moved:1:stop");
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  StagedDirectory::settle(target_);
  EXPECT_FALSE(fs::exists(target_));
  EXPECT_EQ(entries(), 2U);
  ASSERT_EQ(kill(child, SIGCONT), 0);
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(content(), "new");
  EXPECT_EQ(entries(), 1U);
}

#endif

}  // namespace
}  // namespace lockstep
