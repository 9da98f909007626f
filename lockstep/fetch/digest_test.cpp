#include "lockstep/fetch/digest.h"

#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/fetch/text_file.h"
#include "lockstep/os/temporary_directory.h"

namespace lockstep {
namespace {

TEST(Digest, GivesThePublishedValuesForAnyPieces) {
  for (const std::size_t piece : {1U, 2U, 3U}) {
    const std::string text = "abc";
    Digest sha256(DigestKind::kSha256);
    Digest md5(DigestKind::kMd5);
    for (std::size_t at = 0; at < text.size(); at += piece) {
      const std::size_t bytes = std::min(piece, text.size() - at);
      sha256.update(text.data() + at, bytes);
      md5.update(text.data() + at, bytes);
    }
    EXPECT_EQ(sha256.finish(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    EXPECT_EQ(md5.finish(), "900150983cd24fb0d6963f7d28e17f72");
  }
}

TEST(Digest, OfFilesOfManyPieces) {
  const TemporaryDirectory directory(std::filesystem::temp_directory_path(), "lockstep-digest-");
  const auto file = directory.path() / "file";
  write_text_file(file, std::string(3'000'001, 'a'));
  Digest whole(DigestKind::kSha256);
  const std::string text(3'000'001, 'a');
  whole.update(text.data(), text.size());
  EXPECT_EQ(digest_of_file(DigestKind::kSha256, file), whole.finish());
  EXPECT_THROW(digest_of_file(DigestKind::kMd5, directory.path() / "none"), SystemError);
}

}  // namespace
}  // namespace lockstep
