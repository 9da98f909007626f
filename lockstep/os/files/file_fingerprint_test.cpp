#include "lockstep/os/files/file_fingerprint.h"

#include <fstream>
#include <set>

#include <gtest/gtest.h>

#include "lockstep/os/files/temporary_directory.h"

namespace lockstep {
namespace {

void write_content(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

TEST(FileFingerprint, IsThatOfTheContent) {
  const TemporaryDirectory directory("/tmp", "lockstep-test-");
  const std::string path = (directory.path() / "file").string();
  std::set<std::string> whole;
  std::set<std::string> quick;
  for (const std::size_t size : {1U, 7U, 8U, 9U, 65'536U, 65'537U, 200'001U}) {
    std::string content(size, 'a');
    write_content(path, content);
    const std::string again = file_fingerprint(path);
    EXPECT_EQ(file_fingerprint(path), again);
    EXPECT_EQ(again.size(), 16U);
    whole.insert(again);
    quick.insert(quick_fingerprint(path));
    content.back() = 'b';
    write_content(path, content);
    whole.insert(file_fingerprint(path));
    quick.insert(quick_fingerprint(path));
  }
  EXPECT_EQ(whole.size(), 14U);
  EXPECT_EQ(quick.size(), 14U);
}

TEST(FileFingerprint, OfNothingThereIsNone) {
  EXPECT_EQ(file_fingerprint("/nowhere"), "");
  EXPECT_EQ(quick_fingerprint("/nowhere"), "");
}

TEST(FileFingerprint, TheQuickOneDoesNotLookAtTheMiddle) {
  const TemporaryDirectory directory("/tmp", "lockstep-test-");
  const std::string path = (directory.path() / "file").string();
  std::string content(300'000, 'a');
  write_content(path, content);
  const std::string quick = quick_fingerprint(path);
  const std::string whole = file_fingerprint(path);
  content[150'000] = 'b';
  write_content(path, content);
  EXPECT_EQ(quick_fingerprint(path), quick);
  EXPECT_NE(file_fingerprint(path), whole);
}

}  // namespace
}  // namespace lockstep
