#include "lockstep/train/tensorboard_writer.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/os/files/temporary_directory.h"

namespace lockstep {
namespace {

class TensorBoardWriterTest : public ::testing::Test {
 protected:
  std::uintmax_t bytes() {
    writer_.flush();
    return std::filesystem::file_size(writer_.path());
  }

  // What the file has of one, but for the time of day and the checksums.
  std::string histogram_of(const at::Tensor& values) {
    const auto before = bytes();
    writer_.add_histogram("h", values, 1);
    std::string event(bytes() - before, '\0');
    std::ifstream file(writer_.path(), std::ios::binary);
    file.seekg(static_cast<std::streamoff>(before));
    file.read(event.data(), static_cast<std::streamsize>(event.size()));
    constexpr std::size_t kHeader = 12;  // length and its checksum
    constexpr std::size_t kTime = 9;
    constexpr std::size_t kChecksum = 4;
    return event.substr(kHeader + kTime, event.size() - kHeader - kTime - kChecksum);
  }

  TemporaryDirectory folder_{std::filesystem::temp_directory_path(), "tensorboard-"};
  TensorBoardWriter writer_{folder_.path() / "run"};
};

TEST_F(TensorBoardWriterTest, TakesImagesOfEveryKind) {
  for (const at::ScalarType dtype : {at::kByte, at::kHalf, at::kFloat, at::kDouble}) {
    const auto before = bytes();
    writer_.add_image("grey", at::ones({4, 6}).to(dtype), 1);
    writer_.add_image("colour", at::ones({3, 4, 6}).to(dtype).transpose(1, 2), 1);
    writer_.add_images("grid", at::ones({9, 4, 2, 3}).to(dtype), 1);
    EXPECT_GT(bytes(), before);
  }
  writer_.add_image("no numbers", at::full({2, 2}, std::numeric_limits<float>::quiet_NaN()), 1);
}

TEST_F(TensorBoardWriterTest, TakesHistogramsOfEveryKind) {
  const std::string expected = histogram_of(at::ones({6}, at::kDouble));
  for (const at::ScalarType dtype : {at::kBool, at::kInt, at::kBFloat16, at::kDouble}) {
    EXPECT_EQ(histogram_of(at::ones({2, 3}).to(dtype).t()), expected) << dtype;
  }
  EXPECT_EQ(histogram_of(at::ones({6}).requires_grad_()), expected);
  EXPECT_NE(histogram_of(at::full({6}, 2.0)), expected);
  EXPECT_NE(histogram_of(at::ones({0})), expected);
}

TEST_F(TensorBoardWriterTest, RefusesOtherTensorsAndWritesNothingOfThem) {
  const auto before = bytes();
  for (const at::Tensor& image :
       {at::ones({5}), at::ones({2, 4, 4}), at::ones({3, 0, 4}), at::ones({3, 4, 4}, at::kInt),
        at::ones({1, 3, 4, 4}), at::Tensor()}) {
    EXPECT_THROW(writer_.add_image("image", image, 1), UsageError);
  }
  for (const at::Tensor& images : {at::ones({3, 4, 4}), at::ones({0, 3, 4, 4}), at::Tensor()}) {
    EXPECT_THROW(writer_.add_images("images", images, 1), UsageError);
  }
  for (const at::Tensor& values :
       {at::ones({2}, at::kComplexFloat), at::eye(2).to_sparse(), at::Tensor()}) {
    EXPECT_THROW(writer_.add_histogram("values", values, 1), UsageError);
  }
  EXPECT_EQ(bytes(), before);
}

}  // namespace
}  // namespace lockstep
