#include "lockstep/amp/grad_scaler.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/snapshot/snapshot.h"

namespace lockstep {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class GradScalerTest : public ::testing::Test {
 protected:
  // An iteration whose gradient is `gradient`. Returns whether the optimizer stepped.
  bool iterate(GradScaler& scaler, double gradient) {
    optimizer_.zero_grad();
    scaler.scale((parameter_ * gradient).sum()).backward();
    const bool stepped = scaler.step(optimizer_);
    scaler.update();
    return stepped;
  }
  template <class Action>
  static std::string usage_error(Action&& action) {
    try {
      action();
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no error";
  }

  at::Tensor parameter_ = at::ones({3}).requires_grad_();
  torch::optim::SGD optimizer_{{parameter_}, 0.5};
};

TEST_F(GradScalerTest, SkipsOverflowsBacksOffAndGrowsAgain) {
  GradScaler scaler({.init_scale = 8, .growth_interval = 2});
  EXPECT_TRUE(iterate(scaler, 1));
  EXPECT_TRUE(at::equal(parameter_, at::full({3}, 0.5)));
  EXPECT_EQ(scaler.get_growth_tracker(), 1);
  EXPECT_TRUE(iterate(scaler, 1));
  EXPECT_EQ(scaler.get_scale(), 16);
  const at::Tensor before = parameter_.detach().clone();
  for (const double bad : {kInfinity, -kInfinity, std::nan("")}) {
    const double scale = scaler.get_scale();
    EXPECT_FALSE(iterate(scaler, bad));
    EXPECT_EQ(scaler.get_scale(), scale / 2);
    EXPECT_EQ(scaler.get_growth_tracker(), 0);
  }
  EXPECT_TRUE(at::equal(parameter_, before));
  EXPECT_TRUE(iterate(scaler, 1));
  EXPECT_EQ(scaler.get_scale(), 2);
}

TEST_F(GradScalerTest, UnscaledGradientsAreThoseWithoutAScale) {
  GradScaler scaler;
  EXPECT_EQ(scaler.get_scale(), 65536);
  scaler.scale((parameter_ * 3).sum()).backward();
  EXPECT_TRUE(at::equal(parameter_.grad(), at::full({3}, 3 * 65536.0)));
  scaler.unscale_(optimizer_);
  EXPECT_TRUE(at::equal(parameter_.grad(), at::full({3}, 3.0)));
  EXPECT_TRUE(scaler.step(optimizer_));  // not a second time
  EXPECT_TRUE(at::equal(parameter_, at::full({3}, -0.5)));
}

TEST_F(GradScalerTest, UnscalesAParameterOnceHoweverOftenItIsGiven) {
  torch::optim::SGD optimizer({parameter_, parameter_}, 0.5);
  optimizer.add_param_group(torch::optim::OptimizerParamGroup({parameter_}));
  GradScaler scaler;
  scaler.scale((parameter_ * 3).sum()).backward();
  scaler.unscale_(optimizer);
  EXPECT_TRUE(at::equal(parameter_.grad(), at::full({3}, 3.0)));
}

TEST_F(GradScalerTest, UnscalesGradientsThatShareMemoryOnceEach) {
  const at::Tensor other = at::ones({3}).requires_grad_();
  torch::optim::SGD optimizer({parameter_, other}, 0.5);
  GradScaler scaler;
  const at::Tensor sum = at::zeros({1, 3}) + parameter_.unsqueeze(0) + other.unsqueeze(0);
  scaler.scale((sum * 3).sum()).backward();
  scaler.unscale_(optimizer);
  EXPECT_TRUE(at::equal(parameter_.grad(), at::full({3}, 3.0)));
  EXPECT_TRUE(at::equal(other.grad(), at::full({3}, 3.0)));
}

TEST_F(GradScalerTest, OneOptimizersOverflowSkipsItAloneButLowersTheScale) {
  const at::Tensor other = at::ones({2}).requires_grad_();
  torch::optim::SGD of_other({other}, 0.5);
  GradScaler scaler;
  scaler.scale(parameter_.sum()).backward();
  scaler.scale(other.sum() * kInfinity).backward();
  EXPECT_TRUE(scaler.step(optimizer_));
  EXPECT_FALSE(scaler.step(of_other));
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 32768);
}

TEST_F(GradScalerTest, TakesGradientsOfSeveralDtypesAndSparseOnes) {
  const at::Tensor doubles = at::ones({2}, at::kDouble).requires_grad_();
  const at::Tensor table = at::ones({4, 2}).requires_grad_();
  torch::optim::SGD optimizer({parameter_, doubles, table}, 0.5);
  GradScaler scaler;
  const at::Tensor rows =
      at::embedding(table, at::arange(2), /*padding_idx=*/-1, false, /*sparse=*/true);
  scaler.scale(parameter_.sum() + (doubles * 2).sum() + (rows * 3).sum()).backward();
  scaler.unscale_(optimizer);
  EXPECT_TRUE(at::equal(parameter_.grad(), at::ones({3})));
  EXPECT_TRUE(at::equal(doubles.grad(), at::full({2}, 2.0, at::kDouble)));
  EXPECT_TRUE(at::equal(table.grad().to_dense().slice(0, 0, 2), at::full({2, 2}, 3.0)));
}

TEST_F(GradScalerTest, DisabledItDoesNothing) {
  GradScaler scaler({.enabled = false});
  const at::Tensor loss = parameter_.sum();
  EXPECT_TRUE(scaler.scale(loss).is_same(loss));
  loss.backward();
  scaler.unscale_(optimizer_);
  EXPECT_TRUE(scaler.step(optimizer_));
  scaler.update();
  EXPECT_TRUE(at::equal(parameter_, at::full({3}, 0.5)));
  EXPECT_EQ(scaler.get_scale(), 1);
  EXPECT_TRUE(scaler.state_dict().empty());
  scaler.load_state_dict({});
}

// Its inverse must stay finite, and what is saved must load.
TEST_F(GradScalerTest, TheScaleStopsAtTheSmallestThatWorks) {
  GradScaler scaler({.init_scale = 8, .backoff_factor = 1e-9});
  for (int step = 0; step < 6; ++step) EXPECT_FALSE(iterate(scaler, kInfinity));
  EXPECT_EQ(scaler.get_scale(), std::numeric_limits<float>::min());
  GradScaler resumed;
  resumed.load_state_dict(scaler.state_dict());
  EXPECT_EQ(resumed.get_scale(), scaler.get_scale());
  EXPECT_TRUE(iterate(resumed, 1));
}

TEST_F(GradScalerTest, StateGoesThroughASnapshot) {
  GradScaler scaler(
      {.init_scale = 8, .growth_factor = 3, .backoff_factor = 0.25, .growth_interval = 5});
  iterate(scaler, kInfinity);
  iterate(scaler, 1);
  const auto path = std::filesystem::path(::testing::TempDir()) / "grad_scaler.snapshot";
  Snapshot snapshot{.extra = scaler.state_dict()};
  snapshot.extra.emplace_back("the program's own", at::ones({2}));
  save_snapshot(path, snapshot);
  GradScaler resumed;
  resumed.load_state_dict(load_snapshot(path).extra);
  std::filesystem::remove(path);
  EXPECT_EQ(resumed.get_scale(), 2);
  EXPECT_EQ(resumed.get_growth_tracker(), 1);
  for (int i = 0; i < 4; ++i) iterate(resumed, 1);
  EXPECT_EQ(resumed.get_scale(), 6);
  iterate(resumed, kInfinity);
  EXPECT_EQ(resumed.get_scale(), 1.5);
  EXPECT_NE(usage_error([&] { resumed.load_state_dict({}); }).find("'grad_scaler.scale'"),
            std::string::npos);
}

TEST_F(GradScalerTest, CallsOutOfOrderAreRefused) {
  GradScaler scaler;
  const auto refused = [&](auto&& action, const std::string& words) {
    const std::string message = usage_error(action);
    EXPECT_NE(message.find(words), std::string::npos) << message;
  };
  const auto unscale = [&] { scaler.unscale_(optimizer_); };
  const auto step = [&] { scaler.step(optimizer_); };
  const auto update = [&] { scaler.update(); };
  refused(unscale, "before scale()");
  refused(update, "update without step()");
  const at::Tensor loss = scaler.scale(parameter_.sum());
  refused(step, "no parameter of the optimizer has a gradient");
  loss.backward();
  unscale();
  refused(unscale, "unscale_ was called");
  step();
  refused(step, "step was called");
  refused(unscale, "unscale_ after step()");
  update();
  refused(update, "update without step()");
  scaler.update(4);
  EXPECT_EQ(scaler.get_scale(), 4);
  refused([&] { scaler.update(0); }, "new_scale=0");
  parameter_.mutable_grad() = at::Tensor();
  const at::Tensor half = at::ones({2}, at::kHalf).requires_grad_();
  torch::optim::SGD of_half({half}, 0.5);
  scaler.scale(half.sum()).backward();
  refused([&] { scaler.unscale_(of_half); }, "dtype Half");
}

TEST_F(GradScalerTest, OptionsThatCannotWorkAreRefused) {
  const double nan = std::nan("");
  // Not in float32 either: beyond its largest, and where its inverse would be.
  for (const double scale : {0.0, -1.0, kInfinity, nan, 1e39, 1e-39}) {
    EXPECT_THROW(GradScaler({.init_scale = scale}), UsageError) << scale;
    GradScaler scaler({.init_scale = 8});
    EXPECT_THROW(scaler.update(scale), UsageError) << scale;
    TensorDict saved = scaler.state_dict();
    for (auto& [name, value] : saved) {
      if (name == "grad_scaler.scale") value = at::full({}, scale, at::kDouble);
    }
    EXPECT_THROW(scaler.load_state_dict(saved), UsageError) << scale;
    EXPECT_EQ(scaler.get_scale(), 8);
  }
  for (const double factor : {1.0, 0.0, -2.0, kInfinity, nan}) {
    EXPECT_THROW(GradScaler({.growth_factor = factor}), UsageError) << factor;
  }
  for (const double factor : {1.0, 0.0, -0.5, -kInfinity, nan}) {
    EXPECT_THROW(GradScaler({.backoff_factor = factor}), UsageError) << factor;
  }
  for (const std::int64_t interval : {0, -1}) {
    EXPECT_THROW(GradScaler({.growth_interval = interval}), UsageError) << interval;
  }
  const std::string message = usage_error([] { GradScaler({.init_scale = kInfinity}); });
  EXPECT_NE(message.find("init_scale=inf is not above 0 and finite"), std::string::npos) << message;
}

}  // namespace
}  // namespace lockstep
