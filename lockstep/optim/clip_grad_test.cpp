#include "lockstep/optim/clip_grad.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/snapshot/snapshot_testing.h"

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
