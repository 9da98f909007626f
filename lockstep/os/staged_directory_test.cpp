#include "lockstep/os/staged_directory.h"

#include <fstream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/base/error.h"
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

}  // namespace
}  // namespace lockstep
