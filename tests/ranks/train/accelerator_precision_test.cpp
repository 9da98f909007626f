// Accelerator with mixed precision, and what it makes of losses that are not finite.
#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/data/datasets/base.h>
#include <torch/data/transforms/stack.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>

#include "lockstep/train/accelerator.h"
#include "tests/ranks/train/accelerator_fixture.h"

namespace lockstep::testing {
namespace {

TEST_F(AcceleratorTest, MixedPrecisionGivesFloatsAndLearns) {
  for (const Precision precision : {Precision::kBFloat16, Precision::kFloat16}) {
    Accelerator accelerator({.precision = precision, .gradient_accumulation_steps = 2});
    torch::nn::Sequential net = make_tanh_net();
    torch::optim::Adam adam(net->parameters(), 0.02);
    torch::optim::StepLR step_lr(adam, 4, 0.9);
    auto [model, optimizer, scheduler, loader] =
        accelerator.prepare(net, adam, step_lr, torch::data::make_data_loader(sine_rows(32), 4));
    double first = 0;
    double last = 0;
    for (int epoch = 0; epoch < 40; ++epoch) {
      last = 0;
      for (auto& batch : loader) {
        const auto accumulating = accelerator.accumulate();
        optimizer.zero_grad();
        const at::Tensor output = model(batch.data);
        EXPECT_EQ(output.scalar_type(), at::kFloat);
        const at::Tensor loss = at::mse_loss(output, batch.target);
        last += loss.item<double>();
        accelerator.backward(loss);
        const double norm = accelerator.clip_grad_norm_(model.parameters(), 1.0);
        // Not finite in a step that overflows, which is skipped.
        EXPECT_TRUE(norm < 100 || !std::isfinite(norm)) << norm << ": the scale has been taken out";
        optimizer.step();
        scheduler.step();
      }
      if (epoch == 0) first = last;
    }
    EXPECT_LT(last, first / 2) << static_cast<int>(precision);
    EXPECT_TRUE(same_bits_everywhere(copies_of(net)));
  }
}

TEST_F(AcceleratorTest, Fp16GradientsAreClippedUnscaledWhateverParametersComeFirst) {
  double norms[2];
  for (const bool scaled : {false, true}) {
    Accelerator accelerator({.precision = scaled ? Precision::kFloat16 : Precision::kFloat32});
    torch::nn::Sequential net = make_tanh_net();
    for (at::Tensor& parameter : net[0]->parameters()) parameter.requires_grad_(false);
    torch::optim::SGD sgd(net[2]->parameters(), 0.01);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    accelerator.backward(model(at::ones({2, 4})).mean() * 0.01);
    norms[scaled ? 1 : 0] = accelerator.clip_grad_norm_(model.parameters(), 1.0);
    optimizer.step();
  }
  EXPECT_NEAR(norms[1], norms[0], 0.01 * norms[0]);
}

// All samples are alike: the gradients of a full batch are the largest.
struct AlikeRows : torch::data::datasets::Dataset<AlikeRows, torch::data::Example<>> {
  explicit AlikeRows(std::int64_t rows_of_all) : count(rows_of_all) {}
  torch::data::Example<> get(std::size_t) override { return {at::ones({4}), at::full({1}, -8.0)}; }
  std::optional<std::size_t> size() const override { return static_cast<std::size_t>(count); }
  std::int64_t count;
};

TEST_F(AcceleratorTest, AnUnevenLastBatchOverflowsNoMoreThanAFullOneInFp16) {
  torch::nn::Linear net(4, 1);
  {
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : net->parameters()) parameter.zero_();
  }
  torch::optim::SGD sgd(net->parameters(), 0.0);
  Accelerator accelerator({.precision = Precision::kFloat16});
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  auto loader = accelerator.make_data_loader(
      AlikeRows((16 + 9) * world_size_ - 1).map(torch::data::transforms::Stack<>()),
      {.batch_size = 16});
  bool full_one_fits = false;
  for (int epoch = 0; epoch < 8; ++epoch) {
    for (auto& batch : loader) {
      optimizer.zero_grad();
      accelerator.backward(at::mse_loss(model(batch.data).to(at::kFloat), batch.target));
      optimizer.step();
      if (batch.data.size(0) == 16) {
        full_one_fits = !optimizer.step_was_skipped();
      } else if (full_one_fits) {
        EXPECT_FALSE(optimizer.step_was_skipped()) << "epoch " << epoch;
      }
    }
  }
  EXPECT_TRUE(full_one_fits);
}

TEST_F(AcceleratorTest, WithFp16TooALossThatIsNotFiniteIsNamed) {
  Accelerator accelerator({.precision = Precision::kFloat16, .non_finite = NonFinite::kStop});
  torch::nn::Sequential net = make_tanh_net();
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const double factor = rank_ == world_size_ - 1 ? std::numeric_limits<double>::quiet_NaN() : 1.0;
  accelerator.backward(model(at::ones({2, 4})).sum() * factor);
  EXPECT_SAYS(message_of<Error>([&, &optimizer = optimizer] { optimizer.step(); }),
              "the loss is not finite on rank " + std::to_string(world_size_ - 1));
}

TEST_F(AcceleratorTest, AStepWhoseLossIsNotFiniteIsNamedAndSkippedOrEndsTheTraining) {
  for (const NonFinite non_finite : {NonFinite::kSkip, NonFinite::kStop, NonFinite::kReport}) {
    Accelerator accelerator({.non_finite = non_finite});
    torch::nn::Sequential net = make_tanh_net();
    torch::optim::SGD sgd(net->parameters(), 0.1);
    torch::optim::StepLR step_lr(sgd, 1, 0.5);
    auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, step_lr);
    const auto train = [&, &model = model, &optimizer = optimizer,
                        &scheduler = scheduler](double factor) {
      optimizer.zero_grad();
      const bool is_bad_here = rank_ == world_size_ - 1;
      accelerator.backward(model(at::ones({2, 4})).sum() * (is_bad_here ? factor : 1.0));
      optimizer.step();
      scheduler.step();
    };
    train(1);
    train(1);
    const double rate = rate_of(sgd);
    EXPECT_LT(rate, 0.1);
    const Tensors before = copies_of(net);
    const double bad = std::numeric_limits<double>::quiet_NaN();
    if (non_finite == NonFinite::kStop) {
      const std::string message = message_of<Error>([&] { train(bad); });
      EXPECT_SAYS(message, "step 3: the loss is not finite on rank " +
                               std::to_string(world_size_ - 1) + "; gradients");
      EXPECT_SAYS(message, "0.weight, 0.bias, 2.weight and 1 others");
      EXPECT_TRUE(at::equal(net->parameters()[0], before[0]));
    } else if (non_finite == NonFinite::kSkip) {
      train(bad);
      EXPECT_TRUE(optimizer.step_was_skipped());
      EXPECT_TRUE(at::equal(net->parameters()[0], before[0]));
      EXPECT_EQ(rate_of(sgd), rate) << "the scheduler follows";
      train(1);
      EXPECT_FALSE(optimizer.step_was_skipped());
      EXPECT_FALSE(at::equal(net->parameters()[0], before[0]));
    } else {
      train(bad);
      EXPECT_TRUE(at::isnan(net->parameters()[0]).any().item<bool>());
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
