#include "lockstep/train/tensorboard_writer.h"

#include <cstdint>
#include <filesystem>
#include <limits>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/os/temporary_directory.h"

namespace lockstep {
namespace {

class TensorBoardWriterTest : public ::testing::Test {
 protected:
  std::uintmax_t bytes() {
    writer_.flush();
    return std::filesystem::file_size(writer_.path());
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
  for (const at::ScalarType dtype : {at::kBool, at::kInt, at::kBFloat16, at::kDouble}) {
    writer_.add_histogram("h", at::ones({2, 3}).to(dtype).t(), 1);
  }
  writer_.add_histogram("none", at::ones({0}), 1);
  writer_.add_histogram("of a parameter", at::ones({3}).requires_grad_(), 1);
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
