#include "lockstep/record/internal/event.h"

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

std::string in_hex(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x",
                  static_cast<unsigned>(static_cast<unsigned char>(byte)));
    text += digits;
  }
  return text;
}

// What tensorboard.compat.proto and its RecordWriter make of the same.
TEST(Event, HasTheBytesOfTensorBoardsOwn) {
  EXPECT_EQ(in_hex(scalar_event({1.5, 300}, "loss", 0.25)),
            "09000000000000f83f10ac022a0d0a0b0a046c6f7373150000803e");
  EXPECT_EQ(in_hex(restart_event({1.5, 7})), "09000000000000f83f10073a020801");
  EXPECT_EQ(in_hex(version_event({1.5, -1})),
            "09000000000000f83f10ffffffffffffffffff011a0d627261696e2e4576656e743a32");
  EXPECT_EQ(
      in_hex(framed_record(scalar_event({1.5, 300}, "loss", 0.25))),
      "1b000000000000001a0d9e1309000000000000f83f10ac022a0d0a0b0a046c6f7373150000803e9908deed");
}

TEST(Event, ARecordEndsWithTheMaskedChecksumOfItsEvent) {
  // The CRC-32C that RFC 3720 gives is 0xE3069283; rotated by 15 bits 0x2507C60D; 0xA282EAD8 more.
  EXPECT_TRUE(in_hex(framed_record("123456789")).ends_with("e5b08ac7"));
}

TEST(Event, AnImageThatIsNoneIsRefused) {
  const std::vector<std::uint8_t> bytes(12);
  EXPECT_THROW(image_event({}, "image", {.width = 2, .height = 3, .channels = 3, .bytes = bytes}),
               UsageError);
  EXPECT_THROW(image_event({}, "image", {.width = 0, .height = 3, .bytes = {}}), UsageError);
  EXPECT_THROW(image_event({}, "image", {.width = 3, .height = 2, .channels = 2, .bytes = bytes}),
               UsageError);
  const std::string png = encode_png({.width = 2, .height = 2, .channels = 3, .bytes = bytes});
  EXPECT_EQ(png.substr(0, 8), "\x89PNG\r\n\x1a\n");
}

}  // namespace
}  // namespace lockstep
