#include "examples/data/checksum_list.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace examples {
namespace {

using lockstep::CorruptFile;

const std::string kOnes(64, '1');
const std::string kLetters(64, 'e');

TEST(ChecksumList, ReadsWhatSha256sumWrites) {
  const auto files = parse_checksum_list(kOnes + "  train.bin\n" + kLetters + "  a name\n", "f");
  ASSERT_EQ(files.size(), 2U);
  EXPECT_EQ(files[0].sha256, kOnes);
  EXPECT_EQ(files[0].name, "train.bin");
  EXPECT_EQ(files[1].name, "a name");
  EXPECT_TRUE(parse_checksum_list("", "f").empty());
}

TEST(ChecksumList, TakesBinaryMarksAndALastLineWithoutItsEnd) {
  const auto files = parse_checksum_list(kOnes + " *x", "f");
  ASSERT_EQ(files.size(), 1U);
  EXPECT_EQ(files[0].name, "x");
}

TEST(ChecksumList, NamesTheLineThatIsWrong) {
  const std::string good = kOnes + "  x\n";
  for (const std::string& bad : {std::string("\n"), std::string("12  x\n"), kOnes + " x\n",
                                 kOnes + "  \n", std::string(64, 'G') + "  x\n"}) {
    try {
      parse_checksum_list(good + bad, "SUMS");
      ADD_FAILURE() << bad;
    } catch (const CorruptFile& error) {
      EXPECT_NE(std::string(error.what()).find("SUMS, line 2"), std::string::npos) << error.what();
    }
  }
}

TEST(ChecksumList, Sha256IsThatOfFips180) {
  EXPECT_EQ(sha256_of("abc", 3),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_of("", 0), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

}  // namespace
}  // namespace examples
