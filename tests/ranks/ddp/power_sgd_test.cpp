#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/ddp/hooks.h"
#include "tests/ranks/ddp/comm_hook_fixture.h"

namespace lockstep::testing {
namespace {

class PowerSgd : public CommHookTest {};

TEST_F(PowerSgd, IsExactAtFirstAndWhereItsRankIsFull) {
  const auto options = [](std::int64_t rank, bool batched) {
    return PowerSgdOptions{.matrix_approximation_rank = rank,
                           .start_power_sgd_iter = 2,
                           .min_compression_rate = 1e-3,
                           .batched = batched};
  };
  HookedModel model = make(std::make_shared<PowerSgdHook>(options(1, false)));
  EXPECT_LT(largest_error(model, 0), 1e-5);
  EXPECT_LT(largest_error(model, 1), 1e-5);
  EXPECT_GT(largest_error(model, 2), 1e-2);
  for (const bool batched : {false, true}) {
    HookedModel full = make(std::make_shared<PowerSgdHook>(options(100, batched)));
    for (int step = 0; step < 4; ++step) EXPECT_LT(largest_error(full, step), 1e-3) << batched;
  }
}

// What an approximation leaves out is not lost: in the long run the sum of what is applied is that
// of the averages.
TEST_F(PowerSgd, FeedsBackWhatItLeavesOut) {
  for (const bool batched : {false, true}) {
    const auto hook = std::make_shared<PowerSgdHook>(PowerSgdOptions{
        .matrix_approximation_rank = 2, .start_power_sgd_iter = 2, .batched = batched});
    HookedModel model = make(hook);
    const HookedModel exact = make(nullptr);
    HookedNet plain;
    copy_state(*model, *plain);
    loss_of(plain(inputs(0))).backward();
    const at::Tensor average = plain->second->weight.grad().clone();
    group_.all_reduce(average, {.op = ReduceOp::kAvg});
    at::Tensor sum = at::zeros_like(average);
    constexpr int kSteps = 60;
    for (int step = 0; step < kSteps; ++step) {
      model->zero_grad();
      loss_of(model(inputs(0))).backward();
      sum += model->second->weight.grad();
    }
    const double error = ((sum / kSteps - average).norm() / average.norm()).item<double>();
    EXPECT_LT(error, batched ? 0.25 : 0.1);
    EXPECT_LT(hook->elements_after(), hook->elements_before());
  }
}

TEST_F(PowerSgd, Trains) {
  for (const PowerSgdOptions& options :
       {PowerSgdOptions{.start_power_sgd_iter = 3},
        PowerSgdOptions{
            .start_power_sgd_iter = 3, .warm_start = false, .orthogonalization_epsilon = 1e-8},
        PowerSgdOptions{.matrix_approximation_rank = 2,
        .start_power_sgd_iter = 3,
        .use_error_feedback = false,
        .batched = true}}) {
    HookedModel model = make(std::make_shared<PowerSgdHook>(options));
    torch::optim::SGD optimizer(model.parameters(), 0.5);
    double first = 0;
    double last = 0;
    for (int step = 0; step < 40; ++step) {
      optimizer.zero_grad();
      const at::Tensor loss = loss_of(model(inputs(0)));
      loss.backward();
      optimizer.step();
      last = loss.item<double>();
      if (step == 0) first = last;
    }
    EXPECT_LT(last, 0.5 * first);
    EXPECT_TRUE(same_bits_everywhere(model->parameters()));
  }
  EXPECT_SAYS(message_of<UsageError>([] { PowerSgdHook hook({.start_power_sgd_iter = 1}); }),
              "start_power_sgd_iter=1");
  EXPECT_SAYS(message_of<UsageError>([] { PowerSgdHook hook({.matrix_approximation_rank = 0}); }),
              "matrix_approximation_rank=0");
}

TEST_F(PowerSgd, RefusesOptionsThatCannotWork) {
  const auto refusal = [](const PowerSgdOptions& options) {
    return message_of<UsageError>([&] { PowerSgdHook hook(options); });
  };
  EXPECT_SAYS(refusal({.min_compression_rate = 0}), "min_compression_rate=0");
  EXPECT_SAYS(refusal({.min_compression_rate = -2}), "min_compression_rate=-2");
  EXPECT_SAYS(refusal({.orthogonalization_epsilon = -1e-8}), "orthogonalization_epsilon=-1e-08");
  EXPECT_SAYS(refusal({.orthogonalization_epsilon = std::nan("")}), "orthogonalization_epsilon=");
  EXPECT_SAYS(
      refusal({.start_power_sgd_iter = -1, .use_error_feedback = false, .warm_start = false}),
      "start_power_sgd_iter=-1");
}

TEST_F(PowerSgd, RepeatsWithTheSameRandomSeed) {
  const auto gradients_with = [&](std::int64_t seed) {
    torch::manual_seed(7);
    HookedModel model = make(std::make_shared<PowerSgdHook>(
        PowerSgdOptions{.start_power_sgd_iter = 2, .random_seed = seed}));
    return gradients_of(model, 4);
  };
  const Tensors first = gradients_with(1);
  const Tensors again = gradients_with(1);
  const Tensors other = gradients_with(2);
  ASSERT_EQ(first.size(), other.size());
  bool all_equal = true;
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_TRUE(at::equal(first[i], again[i])) << i;
    all_equal = all_equal && at::equal(first[i], other[i]);
  }
  EXPECT_FALSE(all_equal);
}

// Steps of a scaled loss, of which GradScaler leaves out that with an overflow on the last rank.
TEST_F(PowerSgd, AnOverflowIsGoneAfterItsStep) {
  for (const bool batched : {false, true}) {
    for (const bool keeps : {false, true}) {
      for (const bool in_bias : {false, true}) {
        SCOPED_TRACE(concat(batched ? "batched " : "", keeps ? "memory " : "",
                            in_bias ? "in what is not compressed" : "everywhere"));
        HookedModel model =
            make(std::make_shared<PowerSgdHook>(PowerSgdOptions{.start_power_sgd_iter = 2,
                                                                .use_error_feedback = keeps,
                                                                .warm_start = keeps,
                                                                .batched = batched}));
        torch::optim::SGD optimizer(model.parameters(), 0.1);
        GradScaler scaler({.init_scale = 8, .growth_interval = 3});
        for (int step = 0; step < 12; ++step) {
          optimizer.zero_grad();
          at::Tensor loss = loss_of(model(inputs(step)));
          const bool overflows = step == 5;
          if (overflows && rank_ == world_size_ - 1) {
            const double infinity = std::numeric_limits<double>::infinity();
            loss = in_bias ? loss + (model->second->bias * infinity).sum() : loss * infinity;
          }
          scaler.scale(loss).backward();
          EXPECT_EQ(scaler.step(optimizer), !overflows) << step;
          scaler.update();
          EXPECT_TRUE(same_bits_everywhere(model->parameters()));
        }
        for (const at::Tensor& parameter : model->parameters()) {
          EXPECT_TRUE(at::isfinite(parameter).all().item<bool>());
        }
      }
    }
  }
}

// Scales are powers of 2, by which every number is multiplied exactly.
TEST_F(PowerSgd, WhatIsLeftOutFollowsTheLossScale) {
  for (const bool batched : {false, true}) {
    double scale = 1;
    const auto gradients_with = [&](const std::vector<double>& scales) {
      torch::manual_seed(7);
      HookedModel model = make(std::make_shared<PowerSgdHook>(PowerSgdOptions{
          .start_power_sgd_iter = 2, .batched = batched, .loss_scale = [&] { return scale; }}));
      Tensors gradients;
      for (std::size_t step = 0; step < scales.size(); ++step) {
        scale = scales[step];
        model->zero_grad();
        (loss_of(model(inputs(static_cast<int>(step)))) * scale).backward();
        for (const at::Tensor& gradient : gradients_now(model))
          gradients.push_back(gradient / scale);
      }
      return gradients;
    };
    const Tensors expected = gradients_with(std::vector<double>(8, 1));
    const Tensors actual = gradients_with({1, 2, 4, 4, 16, 8, 0.5, 1024});
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i) {
      EXPECT_TRUE(at::equal(actual[i], expected[i])) << i << actual[i] << expected[i];
    }
  }
}

// Five elements are a square of nine, whose padding an approximation fills: without memory a step
// must not depend on the one before.
TEST_F(PowerSgd, BatchedPaddingIsZeroInEveryStep) {
  const auto second_step_after = [&](double first_factor) {
    torch::manual_seed(7);
    DistributedDataParallel model(
        torch::nn::Linear(4, 1),
        {.comm_hook = std::make_shared<PowerSgdHook>(PowerSgdOptions{.start_power_sgd_iter = 0,
                                                                     .use_error_feedback = false,
                                                                     .warm_start = false,
                                                                     .batched = true})});
    const at::Tensor x = at::sin(at::arange(8.0) + rank_).view({2, 4});
    for (const double factor : {first_factor, 1.0}) {
      model->zero_grad();
      (model(x).square().sum() * factor).backward();
    }
    return at::cat({model->weight.grad().flatten(), model->bias.grad()});
  };
  EXPECT_TRUE(at::equal(second_step_after(1), second_step_after(5)));
}

// A gradient whose first row and column are zeros, as of an input and a unit that are always 0.
TEST_F(PowerSgd, AStepWithoutGradientIsNoEnd) {
  DistributedDataParallel model(torch::nn::Linear(torch::nn::LinearOptions(16, 16).bias(false)),
                                {.comm_hook = std::make_shared<PowerSgdHook>(PowerSgdOptions{
                                     .start_power_sgd_iter = 2, .use_error_feedback = false})});
  at::Tensor x = at::ones({1, 16});
  x.select(1, 0).zero_();
  for (int step = 0; step < 6; ++step) {
    model->zero_grad();
    const double factor = step == 3 ? 0 : 1;
    (model(x) * x * factor).sum().backward();
    EXPECT_TRUE(at::allclose(model->weight.grad(), x.t().mm(x) * factor, 1e-3, 1e-3)) << step;
  }
}

struct RealAndComplexImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return at::matmul(x, turn) * scale + shift; }
  at::Tensor turn = register_parameter("turn", at::randn({4, 5}, at::kComplexFloat));
  at::Tensor shift = register_parameter("shift", at::randn({5}, at::kComplexFloat));
  at::Tensor scale = register_parameter("scale", at::randn({3, 5}));
};
TORCH_MODULE(RealAndComplex);

TEST_F(PowerSgd, TakesRealAndComplexParameters) {
  const at::Tensor x =
      at::sin(at::arange(12, at::kFloat) * (rank_ + 1)).view({3, 4}).to(at::kComplexFloat);
  const auto loss = [&](auto& module) { return at::abs(module(x)).square().sum(); };
  const auto full = [](double min_compression_rate, bool batched) {
    return std::make_shared<PowerSgdHook>(
        PowerSgdOptions{.matrix_approximation_rank = 100,
                        .start_power_sgd_iter = 2,
                        .min_compression_rate = min_compression_rate,
                        .batched = batched});
  };
  const std::pair<std::shared_ptr<CommHook>, double> hooks[] = {
      {full(1e-3, false), 1e-4},  // everything is compressed
      {full(2, false), 1e-4},     // nothing is
      {full(2, true), 1e-4},
      {std::make_shared<CompressHook>(at::kHalf, full(1e-3, false)), 2e-2}};
  for (const auto& [hook, tolerance] : hooks) {
    SCOPED_TRACE(hook->describe());
    DistributedDataParallel model(RealAndComplex(), {.comm_hook = hook});
    RealAndComplex plain;
    copy_state(*model, *plain);
    for (int step = 0; step < 4; ++step) {
      model->zero_grad();
      plain->zero_grad();
      loss(model).backward();
      loss(plain).backward();
      for (std::size_t i = 0; i < plain->parameters().size(); ++i) {
        const auto real = [](const at::Tensor& gradient) {
          return (gradient.is_complex() ? at::view_as_real(gradient) : gradient).contiguous();
        };
        const at::Tensor average = real(plain->parameters()[i].grad()).clone();
        group_.all_reduce(average, {.op = ReduceOp::kAvg});
        const at::Tensor ours = real(model->parameters()[i].grad());
        const double error = ((ours - average).abs().max() / average.abs().max()).item<double>();
        EXPECT_LT(error, tolerance) << "step " << step << " parameter " << i;
        EXPECT_TRUE(same_bits_everywhere({ours}));
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
