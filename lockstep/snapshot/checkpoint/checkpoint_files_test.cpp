#include "lockstep/snapshot/checkpoint/checkpoint_files.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/files/temporary_directory.h"
#include "lockstep/snapshot/internal/snapshot_testing.h"

namespace lockstep::testing {
namespace {

std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

class CheckpointFilesTest : public ::testing::Test {
 protected:
  std::filesystem::path path(std::size_t i) const { return directory_.path() / std::to_string(i); }

  /// The text of each file is its index.
  void add(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      put_file_bytes(path(i), std::to_string(i));
      EXPECT_EQ(files_.add(path(i)).text(), std::to_string(i));
    }
  }

  TemporaryDirectory directory_{std::filesystem::temp_directory_path(), "checkpoint-files-"};
  CheckpointFiles files_;
};

TEST_F(CheckpointFilesTest, AnyNumberIsReadWithFewOpen) {
  const std::size_t before = open_descriptors();
  const std::size_t count = 3 * CheckpointFiles::kMostOpen + 1;
  add(count);
  for (int round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t index = i * 7 % count;
      ASSERT_EQ(files_.open(index).text(), std::to_string(index));
      ASSERT_LE(open_descriptors(), before + CheckpointFiles::kMostOpen);
    }
  }
}

TEST_F(CheckpointFilesTest, AFileInUseStaysOpen) {
  add(1);
  const ReadableFile first = files_.open(0);
  for (std::size_t i = 0; i < CheckpointFiles::kMostOpen; ++i) {
    put_file_bytes(path(1 + i), "x");
    files_.add(path(1 + i));
  }
  EXPECT_EQ(first.text(), "0");
}

TEST_F(CheckpointFilesTest, AnotherFileAtThePathIsRefused) {
  add(CheckpointFiles::kMostOpen + 2);
  for (const std::size_t i : {std::size_t{0}, CheckpointFiles::kMostOpen + 1}) {
    put_file_bytes(directory_.path() / "new", std::to_string(i));
    std::filesystem::rename(directory_.path() / "new", path(i));
  }
  EXPECT_EQ(files_.open(CheckpointFiles::kMostOpen + 1).text(),
            std::to_string(CheckpointFiles::kMostOpen + 1))
      << "this file is open";
  EXPECT_NE(message_of<CorruptFile>([&] { files_.open(0); }).find("was replaced"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep::testing
