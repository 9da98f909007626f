#include "lockstep/os/files/remove_tree.h"

#include <fstream>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "lockstep/os/files/temporary_directory.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

class RemoveTree : public ::testing::Test {
 protected:
  static void write(const fs::path& path) { std::ofstream(path) << "text"; }
  static std::error_code removed(const fs::path& path) {
    std::error_code error = std::make_error_code(std::errc::io_error);
    remove_tree(path, error);
    return error;
  }

  const TemporaryDirectory directory_{temporary_folder(), "remove_tree_"};
  const fs::path tree_ = directory_.path() / "tree";
};

TEST_F(RemoveTree, TakesAllThatADirectoryHoldsAndNothingThatLinksPointTo) {
  const fs::path outside = directory_.path() / "outside";
  fs::create_directories(outside);
  write(outside / "file");
  fs::create_directories(tree_ / "a" / "b");
  write(tree_ / "a" / "b" / "file");
  write(tree_ / ".hidden");
  fs::create_directory_symlink(outside, tree_ / "link");
  fs::create_symlink("nowhere", tree_ / "broken");
  EXPECT_FALSE(removed(tree_));
  EXPECT_FALSE(fs::exists(tree_));
  EXPECT_TRUE(fs::exists(outside / "file"));
}

TEST_F(RemoveTree, TakesAFileAndALinkToADirectory) {
  write(tree_);
  EXPECT_FALSE(removed(tree_));
  fs::create_directory_symlink(directory_.path(), tree_);
  EXPECT_FALSE(removed(tree_));
  EXPECT_FALSE(fs::exists(fs::symlink_status(tree_)));
  EXPECT_TRUE(fs::exists(directory_.path()));
}

TEST_F(RemoveTree, TwoAtOnceTakeAllOfIt) {
  for (int folder = 0; folder < 20; ++folder) {
    fs::create_directories(tree_ / std::to_string(folder));
    for (int file = 0; file < 50; ++file) write(tree_ / std::to_string(folder) / std::to_string(file));
  }
  std::error_code first;
  std::thread other([&] { first = removed(tree_); });
  const std::error_code second = removed(tree_);
  other.join();
  EXPECT_FALSE(first) << first.message();
  EXPECT_FALSE(second) << second.message();
  EXPECT_FALSE(fs::exists(tree_));
}

TEST_F(RemoveTree, OfWhatIsNotThereSucceeds) {
  EXPECT_FALSE(removed(tree_));
}

TEST_F(RemoveTree, SaysWhatWentWrong) {
  write(tree_);
  EXPECT_EQ(removed(tree_ / "below a file"), std::errc::not_a_directory);
}

}  // namespace
}  // namespace lockstep
