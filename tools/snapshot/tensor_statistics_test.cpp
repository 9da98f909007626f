#include "tools/snapshot/tensor_statistics.h"

#include <limits>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

constexpr double kPlusInfinity = std::numeric_limits<double>::infinity();

TEST(TensorStatistics, AreThoseOfTheFiniteNumbers) {
  const TensorStatistics found =
      statistics_of(at::tensor({3.0, std::nan(""), 5.0, kPlusInfinity}, at::kFloat).view({2, 2}));
  EXPECT_EQ(found.mean, 4);
  EXPECT_EQ(found.std, 1);
  EXPECT_DOUBLE_EQ(found.norm, std::sqrt(34.0));
  EXPECT_EQ(found.non_finite, 2);
  EXPECT_EQ(statistics_of(at::tensor({kPlusInfinity})).non_finite, 1);
}

TEST(TensorStatistics, AreThereForEveryDtypeAndShape) {
  for (const at::ScalarType dtype : {at::kBool, at::kByte, at::kLong, at::kHalf, at::kBFloat16,
                                     at::kDouble, at::kComplexFloat, at::kFloat8_e4m3fn}) {
    EXPECT_EQ(statistics_of(at::ones({2, 2}).to(dtype)).norm, 2) << dtype;
  }
  EXPECT_EQ(statistics_of(at::empty({3, 0})).mean, 0);
  EXPECT_EQ(statistics_of(at::scalar_tensor(7)).std, 0);
}

TEST(TensorDifference, IsNoneOfIdenticalBitsAlone) {
  EXPECT_TRUE(
      difference_of(at::tensor({1.0, std::nan("")}), at::tensor({1.0, std::nan("")})).identical);
  const TensorDifference zero = difference_of(at::tensor({0.0}), at::tensor({-0.0}));
  EXPECT_FALSE(zero.identical);
  EXPECT_EQ(zero.max_absolute, 0);
  EXPECT_FALSE(difference_of(at::ones({2}), at::ones({2}, at::kDouble)).identical);
}

TEST(TensorDifference, IsTheLargestOfAllNumbers) {
  const TensorDifference found =
      difference_of(at::tensor({1.0, 100.0, 0.0, kPlusInfinity, kPlusInfinity}),
                    at::tensor({1.5, 101.0, 0.0, kPlusInfinity, 1.0}));
  EXPECT_EQ(found.max_absolute, 1);
  EXPECT_DOUBLE_EQ(found.max_relative, 0.5 / 1.5);
  EXPECT_EQ(found.non_finite, 1);
  EXPECT_EQ(difference_of(at::ones({2}, at::kLong), at::zeros({2}, at::kLong)).max_relative, 1);
}

}  // namespace
}  // namespace lockstep
