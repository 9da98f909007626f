#include "examples/data/sha256.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace examples {
namespace {

std::string sha256_of(const std::string& text, std::size_t piece_bytes) {
  Sha256 hash;
  for (std::size_t at = 0; at < text.size(); at += piece_bytes) {
    hash.update(text.data() + at, std::min(piece_bytes, text.size() - at));
  }
  return hash.finish();
}

TEST(Sha256, GivesThePublishedValues) {
  EXPECT_EQ(sha256_of("", 1), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_of("abc", 3),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_of(std::string(1'000'000, 'a'), 1000),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, DoesNotDependOnThePieces) {
  // Lengths around those at which the padding needs another block.
  for (std::size_t length = 50; length < 140; ++length) {
    const std::string text(length, 'x');
    for (const std::size_t piece : {1U, 7U, 63U, 64U, 65U}) {
      EXPECT_EQ(sha256_of(text, piece), sha256_of(text, length)) << length << " by " << piece;
    }
  }
}

}  // namespace
}  // namespace examples
