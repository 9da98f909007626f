#include "lockstep/optim/clip_grad.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/snapshot/internal/snapshot_testing.h"

namespace lockstep::testing {
namespace {

constexpr double kInfiniteNorm = std::numeric_limits<double>::infinity();

at::Tensor parameter_with(const at::Tensor& gradient) {
  at::Tensor parameter = at::zeros_like(gradient).requires_grad_();
  parameter.mutable_grad() = gradient.clone();
  return parameter;
}

// Gradients 3 and 4 beside an empty one and a missing one: their norm is 5.
std::vector<at::Tensor> three_and_four() {
  return {parameter_with(at::full({1}, 3.0)), parameter_with(at::full({1}, -4.0)),
          parameter_with(at::empty({0})), at::zeros({2}).requires_grad_()};
}

TEST(ClipGradNorm, ScalesToTheNormAskedForAndReturnsWhatItWas) {
  const auto parameters = three_and_four();
  EXPECT_EQ(clip_grad_norm_(parameters, 0.5), 5);
  EXPECT_NEAR(get_total_norm(parameters), 0.5, 1e-6);
  EXPECT_FALSE(parameters[3].grad().defined());
}

TEST(ClipGradNorm, LeavesSmallerGradientsAsTheyAre) {
  const auto parameters = three_and_four();
  EXPECT_EQ(clip_grad_norm_(parameters, 6), 5);
  EXPECT_EQ(parameters[0].grad().item().toDouble(), 3);
}

TEST(ClipGradNorm, OfEveryOrder) {
  EXPECT_EQ(get_total_norm(three_and_four(), {.norm_type = 1}), 7);
  EXPECT_EQ(get_total_norm(three_and_four(), {.norm_type = kInfiniteNorm}), 4);
  EXPECT_NEAR(get_total_norm(three_and_four(), {.norm_type = 3}), std::cbrt(27 + 64), 1e-6);
}

// As PyTorch's parameters() gives them, and not LibTorch's.
TEST(ClipGradNorm, CountsAParameterOnceHoweverOftenItIsGiven) {
  const at::Tensor three = parameter_with(at::full({1}, 3.0));
  const at::Tensor four = parameter_with(at::full({1}, 4.0));
  const std::vector<at::Tensor> parameters{three, four, three, three};
  for (const double norm_type : {1.0, 2.0, kInfiniteNorm}) {
    EXPECT_EQ(get_total_norm(parameters, {.norm_type = norm_type}),
              get_total_norm({three, four}, {.norm_type = norm_type}));
  }
  EXPECT_EQ(clip_grad_norm_(parameters, 2.5), 5);
  EXPECT_NEAR(three.grad().item().toDouble(), 1.5, 1e-6);
  clip_grads_with_norm_(parameters, 1.25, 2.5);
  EXPECT_NEAR(three.grad().item().toDouble(), 0.75, 1e-6);
}

// Autograd lets both have one gradient's memory.
TEST(ClipGradNorm, ScalesGradientsThatShareMemoryOnceEach) {
  const at::Tensor one = at::zeros({4}).requires_grad_();
  const at::Tensor other = at::zeros({4}).requires_grad_();
  (at::zeros({1, 4}).requires_grad_() + one.unsqueeze(0) + other.unsqueeze(0)).sum().backward();
  at::Tensor half = at::zeros({2}).requires_grad_();
  half.mutable_grad() = one.grad().narrow(0, 1, 2);
  at::Tensor apart = at::zeros({2}).requires_grad_();
  const at::Tensor bucket = at::ones({4});
  apart.mutable_grad() = bucket.narrow(0, 2, 2);
  at::Tensor beside = at::zeros({2}).requires_grad_();
  beside.mutable_grad() = bucket.narrow(0, 0, 2);
  const std::vector<at::Tensor> parameters{one, other, half, apart, beside};
  const double norm = std::sqrt(14.0);
  EXPECT_NEAR(clip_grad_norm_(parameters, norm / 2), norm, 1e-6);
  for (const at::Tensor& parameter : parameters) {
    EXPECT_TRUE(at::allclose(parameter.grad(), at::full_like(parameter, 0.5))) << parameter.grad();
  }
  EXPECT_TRUE(apart.grad().is_alias_of(bucket));  // Beside each other they may stay.
  EXPECT_TRUE(beside.grad().is_alias_of(bucket));
}

TEST(ClipGradNorm, WithoutGradientsIsZero) {
  EXPECT_EQ(clip_grad_norm_({}, 1), 0);
  EXPECT_EQ(clip_grad_norm_({at::zeros({2}).requires_grad_()}, 1), 0);
  EXPECT_EQ(clip_grad_norm_({parameter_with(at::empty({0}))}, 1, {.norm_type = kInfiniteNorm}), 0);
}

TEST(ClipGradNorm, TakesGradientsOfSeveralDtypesTogether) {
  const std::vector<at::Tensor> parameters{parameter_with(at::full({1}, 3.0, at::kBFloat16)),
                                           parameter_with(at::full({1}, 4.0, at::kDouble)),
                                           parameter_with(at::full({3}, 0.0, at::kFloat))};
  EXPECT_EQ(clip_grad_norm_(parameters, 2.5), 5);
  EXPECT_NEAR(parameters[1].grad().item().toDouble(), 2, 1e-6);
}

TEST(ClipGradNorm, CountsAnIndexOfASparseGradientOnceOnly) {
  const at::Tensor indices = at::zeros({1, 2}, at::kLong);
  at::Tensor parameter = at::zeros({4, 1}).requires_grad_();
  parameter.mutable_grad() = at::sparse_coo_tensor(indices, at::full({2, 1}, 2.5), {4, 1});
  EXPECT_EQ(clip_grad_norm_({parameter}, 1), 5);
  EXPECT_NEAR(parameter.grad().to_dense()[0].item().toDouble(), 1, 1e-6);
}

TEST(ClipGradNorm, ThatIsNotFiniteIsAnErrorWhereAskedFor) {
  const std::vector<at::Tensor> parameters{parameter_with(at::full({2}, kInfiniteNorm)),
                                           parameter_with(at::ones({1}))};
  const std::string message =
      message_of<Error>([&] { clip_grad_norm_(parameters, 1, {.error_if_nonfinite = true}); });
  EXPECT_NE(message.find("norm of order 2 is inf"), std::string::npos) << message;
  EXPECT_EQ(parameters[1].grad().item().toDouble(), 1);
  EXPECT_EQ(clip_grad_norm_(parameters, 1), kInfiniteNorm);
  EXPECT_EQ(parameters[1].grad().item().toDouble(), 0);
}

TEST(ClipGradNorm, WithAKnownNormDoesTheSame) {
  const auto ours = three_and_four();
  clip_grads_with_norm_(ours, 0.5, 5);
  EXPECT_NEAR(get_total_norm(ours), 0.5, 1e-6);
  clip_grads_with_norm_(ours, 0.6, 0.5);
  EXPECT_NEAR(get_total_norm(ours), 0.5, 1e-6);
}

TEST(ClipGradNorm, RefusesWhatIsNoNorm) {
  EXPECT_THROW(clip_grad_norm_(three_and_four(), -1), UsageError);
  EXPECT_THROW(clip_grad_norm_(three_and_four(), std::nan("")), UsageError);
  EXPECT_THROW(get_total_norm(three_and_four(), {.norm_type = -2}), UsageError);
}

TEST(ClipGradValue, ClampsEveryElement) {
  const auto parameters = three_and_four();
  clip_grad_value_(parameters, 3.5);
  EXPECT_EQ(parameters[0].grad().item().toDouble(), 3);
  EXPECT_EQ(parameters[1].grad().item().toDouble(), -3.5);
  EXPECT_THROW(clip_grad_value_(parameters, -1), UsageError);
}

}  // namespace
}  // namespace lockstep::testing
