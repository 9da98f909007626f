#include "lockstep/record/internal/crc32c.h"

#include <string>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

// Of RFC 3720, appendix B.4.
TEST(Crc32c, KnownValues) {
  EXPECT_EQ(crc32c("123456789", 9), 0xE3069283U);
  EXPECT_EQ(crc32c("", 0), 0U);
  const std::string zeros(32, '\0');
  EXPECT_EQ(crc32c(zeros.data(), zeros.size()), 0x8A9136AAU);
  const std::string ones(32, '\xFF');
  EXPECT_EQ(crc32c(ones.data(), ones.size()), 0x62A8AB43U);
}

TEST(Crc32c, MaskedAsInRecordFiles) {
  // 0xE3069283 rotated by 15 bits: 0x2507C60D.
  EXPECT_EQ(masked_crc32c("123456789", 9), 0x2507C60DU + 0xA282EAD8U);
}

}  // namespace
}  // namespace lockstep
