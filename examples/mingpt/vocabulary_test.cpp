#include "examples/mingpt/vocabulary.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "examples/mingpt/text.h"
#include "lockstep/base/error.h"
#include "lockstep/os/files/temporary_directory.h"

namespace mingpt {
namespace {

TEST(Vocabulary, HasEachCharacterOnceInOrder) {
  const Vocabulary vocabulary(U"bac…ab");
  EXPECT_EQ(vocabulary.size(), 4);
  EXPECT_TRUE(vocabulary.characters().equal(at::tensor({97, 98, 99, 0x2026}, at::kLong)));
  EXPECT_TRUE(vocabulary.encode(U"c…a").equal(at::tensor({2, 3, 0}, at::kLong)));
  EXPECT_EQ(vocabulary.decode(vocabulary.encode(U"cab…")), U"cab…");
  EXPECT_EQ(Vocabulary(vocabulary.characters()).decode(at::tensor({3}, at::kLong)), U"…");
}

TEST(Vocabulary, NamesTheCharacterThatItDoesNotHave) {
  try {
    Vocabulary(U"abc").encode(U"aé");
    FAIL() << "encoded";
  } catch (const lockstep::UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("'é' is not among the 3"), std::string::npos);
  }
  EXPECT_THROW(Vocabulary(at::tensor({98, 97}, at::kLong)), lockstep::UsageError);
}

TEST(Text, IsUtf8ThereAndBack) {
  const std::string text = "a…é日😀\n";
  EXPECT_EQ(from_utf8(text, "text").size(), 6U);
  EXPECT_EQ(to_utf8(from_utf8(text, "text")), text);
  EXPECT_EQ(from_utf8("", "text"), U"");
}

TEST(Text, OtherBytesAreRefusedByPlace) {
  for (const std::string bytes : {"ab\xff", "ab\xe2\x80", "ab\xc0\x80"}) {
    try {
      from_utf8(bytes, "notes.txt");
      ADD_FAILURE() << "took " << ::testing::PrintToString(bytes);
    } catch (const lockstep::CorruptFile& error) {
      EXPECT_NE(std::string(error.what()).find("notes.txt: byte 2 "), std::string::npos)
          << error.what();
    }
  }
}

TEST(Text, FoldersGiveTheirTextsInOrder) {
  const lockstep::TemporaryDirectory folder(std::filesystem::temp_directory_path(), "mingpt");
  std::filesystem::create_directory(folder.path() / "b");
  const auto put = [&](const char* name, const char* text) {
    std::ofstream(folder.path() / name) << text;
  };
  put("c.txt", "third");
  put("b/x.md", "second ");
  put("a.md", "first ");
  put("a.png", "picture");
  EXPECT_EQ(read_text({folder.path().string()}), U"first second third");
  EXPECT_EQ(read_text({(folder.path() / "c.txt").string(), (folder.path() / "a.png").string()}),
            U"thirdpicture");
  EXPECT_THROW(read_text({(folder.path() / "absent").string()}), lockstep::SystemError);
  std::filesystem::create_directory(folder.path() / "empty");
  EXPECT_THROW(read_text({(folder.path() / "empty").string()}), lockstep::UsageError);
}

}  // namespace
}  // namespace mingpt
