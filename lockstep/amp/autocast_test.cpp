#include "lockstep/amp/autocast.h"

#include <string>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

at::ScalarType product_dtype() {
  const at::Tensor some = at::ones({3, 3});
  return at::matmul(some, some).scalar_type();
}

TEST(Autocast, CalculatesProductsInBfloat16UnlessToldOtherwise) {
  {
    const Autocast autocast;
    EXPECT_EQ(product_dtype(), at::kBFloat16);
  }
  {
    const Autocast autocast({.dtype = at::kHalf});
    EXPECT_EQ(product_dtype(), at::kHalf);
  }
  EXPECT_EQ(product_dtype(), at::kFloat);
}

TEST(Autocast, NestsAndRestoresWhatWasBefore) {
  const Autocast outer({.dtype = at::kHalf, .cache_enabled = false});
  {
    const Autocast off({.enabled = false});
    EXPECT_EQ(product_dtype(), at::kFloat);
    {
      const Autocast inner({.dtype = at::kBFloat16, .cache_enabled = true});
      EXPECT_EQ(product_dtype(), at::kBFloat16);
      EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
    }
    EXPECT_EQ(product_dtype(), at::kFloat);
  }
  EXPECT_EQ(product_dtype(), at::kHalf);
  EXPECT_FALSE(at::autocast::is_autocast_cache_enabled());
}

TEST(Autocast, RestoresWhereAnErrorEndsIt) {
  try {
    const Autocast autocast;
    throw 1;
  } catch (int) {
  }
  EXPECT_EQ(product_dtype(), at::kFloat);
}

TEST(Autocast, LeavesTheDefaultsOfTorch) {
  EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), at::kBFloat16);
  EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCUDA), at::kHalf);
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
}

TEST(Autocast, ForgetsParametersThatWereCastWhenTheOutermostEnds) {
  const at::Tensor weight = at::ones({2, 2}).requires_grad_();
  const at::Tensor input = at::ones({1, 2});
  const auto product = [&] {
    const Autocast autocast;
    const Autocast inner;
    return at::matmul(input, weight).to(at::kFloat);
  };
  EXPECT_TRUE(at::equal(product(), at::full({1, 2}, 2.0)));
  weight.detach().fill_(3);
  EXPECT_TRUE(at::equal(product(), at::full({1, 2}, 6.0)));
}

TEST(Autocast, RefusesOtherDtypesAndDevices) {
  EXPECT_THROW(Autocast({.dtype = at::kFloat}), UsageError);
  EXPECT_THROW(Autocast({.dtype = at::kInt, .enabled = false}), UsageError);
  EXPECT_THROW(Autocast({.device_type = at::kMeta}), UsageError);
  EXPECT_EQ(product_dtype(), at::kFloat);
}

}  // namespace
}  // namespace lockstep
