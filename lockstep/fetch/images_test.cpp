// Decoding images and writing them as records.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/cifar_format.h"
#include "lockstep/base/error.h"
#include "lockstep/fetch/cifar_records.h"
#include "lockstep/fetch/decode_image.h"
#include "lockstep/fetch/text_file.h"
#include "lockstep/os/temporary_directory.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// PNG files of 2 by 1 pixels: (10, 20, 30) and (40, 50, 60); and grey, 7 and 200.
const std::vector<unsigned char> kColorPng = {
    0x89, 0x50, 0x4e, 0x47, 0xd,  0xa,  0x1a, 0xa,  0x0,  0x0,  0x0,  0xd,  0x49, 0x48, 0x44,
    0x52, 0x0,  0x0,  0x0,  0x2,  0x0,  0x0,  0x0,  0x1,  0x8,  0x2,  0x0,  0x0,  0x0,  0x7b,
    0x40, 0xe8, 0xdd, 0x0,  0x0,  0x0,  0xf,  0x49, 0x44, 0x41, 0x54, 0x78, 0x9c, 0x63, 0xe0,
    0x12, 0x91, 0xd3, 0x30, 0xb2, 0x1,  0x0,  0x2,  0x37, 0x0,  0xd3, 0x5b, 0x56, 0x51, 0xd8,
    0x0,  0x0,  0x0,  0x0,  0x49, 0x45, 0x4e, 0x44, 0xae, 0x42, 0x60, 0x82};
const std::vector<unsigned char> kGreyPng = {
    0x89, 0x50, 0x4e, 0x47, 0xd,  0xa,  0x1a, 0xa,  0x0,  0x0,  0x0,  0xd,  0x49, 0x48,
    0x44, 0x52, 0x0,  0x0,  0x0,  0x2,  0x0,  0x0,  0x0,  0x1,  0x8,  0x0,  0x0,  0x0,
    0x0,  0xd1, 0x49, 0x20, 0x56, 0x0,  0x0,  0x0,  0xb,  0x49, 0x44, 0x41, 0x54, 0x78,
    0x9c, 0x63, 0x60, 0x3f, 0x1,  0x0,  0x0,  0xd9, 0x0,  0xd0, 0xd7, 0xa6, 0x22, 0x3c,
    0x0,  0x0,  0x0,  0x0,  0x49, 0x45, 0x4e, 0x44, 0xae, 0x42, 0x60, 0x82};

class DecodeImageTest : public testing::Test {
 protected:
  fs::path write(const std::vector<unsigned char>& bytes) {
    const fs::path file = directory_.path() / ("image" + std::to_string(count_++));
    write_text_file(file, {bytes.begin(), bytes.end()});
    return file;
  }
  const TemporaryDirectory directory_{fs::temp_directory_path(), "lockstep-image-"};
  int count_ = 0;
};

TEST_F(DecodeImageTest, GivesThreeChannels) {
  const RgbImage color = decode_image(write(kColorPng));
  EXPECT_EQ(color.width, 2U);
  EXPECT_EQ(color.height, 1U);
  EXPECT_EQ(color.pixels, (std::vector<std::uint8_t>{10, 20, 30, 40, 50, 60}));
  const RgbImage grey = decode_image(write(kGreyPng));
  EXPECT_EQ(grey.pixels, (std::vector<std::uint8_t>{7, 7, 7, 200, 200, 200}));
}

TEST_F(DecodeImageTest, RefusesWhatIsNoImageOrDamaged) {
  EXPECT_THROW(decode_image(write({'t', 'e', 'x', 't'})), CorruptFile);
  EXPECT_THROW(decode_image(write({})), CorruptFile);
  std::vector<unsigned char> cut(kColorPng.begin(), kColorPng.begin() + 45);
  EXPECT_THROW(decode_image(write(cut)), CorruptFile);
  EXPECT_THROW(decode_image(directory_.path() / "none"), SystemError);
}

TEST_F(DecodeImageTest, RefusesMorePixelsThanItHasMemoryForBeforeItDecodes) {
  std::vector<unsigned char> large = kGreyPng;
  constexpr std::size_t kWidthAt =
      18;  // In the header: two numbers of four bytes, high ones first.
  large[kWidthAt] = large[kWidthAt + 4] = 0x40;
  try {
    decode_image(write(large));
    FAIL() << "it is decoded";
  } catch (const CorruptFile& error) {
    EXPECT_NE(std::string(error.what()).find("it is too large, 16386 by 16385 pixels"),
              std::string::npos)
        << error.what();
  }
}

TEST(CifarRecords, HaveLabelsThenPlanes) {
  // Pixel (x, y) of channel c is 64 c + 3 y + x, modulo 256.
  RgbImage image{.width = 40, .height = 35, .pixels = {}};
  for (std::size_t y = 0; y < image.height; ++y) {
    for (std::size_t x = 0; x < image.width; ++x) {
      for (std::size_t channel = 0; channel < 3; ++channel) {
        image.pixels.push_back(static_cast<std::uint8_t>(64 * channel + 3 * y + x));
      }
    }
  }
  std::string records;
  append_cifar_record(records, 200, image, {0, 0});
  append_cifar_record(records, 7, image, {8, 3});
  ASSERT_EQ(records.size(), 2 * kCifarRecordBytes);
  const auto byte = [&](std::size_t at) { return static_cast<std::uint8_t>(records[at]); };
  EXPECT_EQ(byte(0), 0) << "coarse label";
  EXPECT_EQ(byte(1), 200);
  const std::size_t second = kCifarRecordBytes;
  EXPECT_EQ(byte(second + 1), 7);
  for (std::size_t channel = 0; channel < 3; ++channel) {
    for (std::size_t y = 0; y < kCifarSide; ++y) {
      for (std::size_t x = 0; x < kCifarSide; ++x) {
        EXPECT_EQ(byte(second + 2 + 1024 * channel + 32 * y + x),
                  static_cast<std::uint8_t>(64 * channel + 3 * (y + 3) + x + 8));
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
