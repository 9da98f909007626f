#include "lockstep/optim/exponential_moving_average.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/snapshot/internal/small_net.h"
#include "lockstep/snapshot/internal/snapshot_testing.h"

namespace lockstep::testing {
namespace {

void fill(torch::nn::Linear& linear, double value) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : linear->parameters()) parameter.fill_(value);
}

double weight_of(const torch::nn::Linear& linear) {
  return linear->weight[0][0].item().toDouble();
}

TEST(ExponentialMovingAverage, CopiesFirstThenAverages) {
  torch::nn::Linear linear(2, 3);
  ExponentialMovingAverage average(*linear, {.decay = 0.75});
  fill(linear, 1);
  average.update();
  fill(linear, 5);
  average.update();
  EXPECT_EQ(average.n_averaged(), 2);
  EXPECT_TRUE(at::equal(average.state_dict()[1].second, at::full({3, 2}, 2.0)));
  EXPECT_EQ(weight_of(linear), 5);
}

TEST(ExponentialMovingAverage, IsInTheModuleWhileTheGuardLives) {
  torch::nn::Linear linear(2, 3);
  ExponentialMovingAverage average(*linear);
  fill(linear, 1);
  average.update();
  fill(linear, 5);
  const void* memory = linear->weight.const_data_ptr();
  {
    const AveragedWeights averaged = average.apply();
    EXPECT_EQ(weight_of(linear), 1);
    EXPECT_THROW(average.update(), UsageError);
    EXPECT_THROW({ const AveragedWeights again = average.apply(); }, UsageError);
    fill(linear, 9);
  }
  EXPECT_EQ(weight_of(linear), 5);
  EXPECT_EQ(linear->weight.const_data_ptr(), memory);
  EXPECT_TRUE(linear->weight.requires_grad());
  const AveragedWeights averaged = average.apply();
  EXPECT_EQ(weight_of(linear), 1);
}

TEST(ExponentialMovingAverage, CopiesBuffersOrAveragesThem) {
  for (const bool use_buffers : {false, true}) {
    SmallNet net;
    ExponentialMovingAverage average(*net, {.decay = 0.5, .use_buffers = use_buffers});
    net->norm->running_mean.fill_(1);
    net->norm->num_batches_tracked.fill_(10);
    average.update();
    net->norm->running_mean.fill_(2);
    net->norm->num_batches_tracked.fill_(21);
    average.update();
    const AveragedWeights averaged = average.apply();
    EXPECT_TRUE(at::equal(net->norm->running_mean, at::full({8}, use_buffers ? 1.5 : 2.0)));
    EXPECT_EQ(net->norm->num_batches_tracked.item().toLong(), use_buffers ? 15 : 21);
  }
}

struct TwiceImpl : torch::nn::Module {
  TwiceImpl() {
    register_module("first", linear);
    register_module("second", linear);
  }
  torch::nn::Linear linear{2, 2};
};
TORCH_MODULE(Twice);

TEST(ExponentialMovingAverage, AveragesASharedWeightOnce) {
  Twice module;
  ExponentialMovingAverage average(*module, {.decay = 0.5});
  for (const double value : {0.0, 4.0}) {
    fill(module->linear, value);
    average.update();
  }
  EXPECT_EQ(average.state_dict().size(), 5);
  {
    const AveragedWeights averaged = average.apply();
    EXPECT_EQ(weight_of(module->linear), 2);
  }
  EXPECT_EQ(weight_of(module->linear), 4);
}

TEST(ExponentialMovingAverage, GoesOnFromItsStateBitForBit) {
  SmallNet net;
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  ExponentialMovingAverage average(*net, {.decay = 0.9});
  const auto step = [&](ExponentialMovingAverage& one) {
    train(net, optimizer, 1);
    one.update();
  };
  step(average);
  step(average);
  TensorDict saved;
  for (const auto& [name, tensor] : average.state_dict()) {
    saved.emplace_back(name, tensor.clone());
  }
  ExponentialMovingAverage other(*net, {.decay = 0.9});
  other.load_state_dict(saved);
  step(average);
  other.update();
  EXPECT_EQ(other.n_averaged(), 3);
  const TensorDict ours = average.state_dict();
  const TensorDict theirs = other.state_dict();
  for (std::size_t i = 0; i < ours.size(); ++i) {
    EXPECT_TRUE(same_bits(ours[i].second, theirs[i].second)) << ours[i].first;
  }
}

TEST(ExponentialMovingAverage, RefusesTheStateOfAnotherModelAndStaysAsItWas) {
  torch::nn::Linear linear(2, 3);
  torch::nn::Linear wider(4, 3);
  ExponentialMovingAverage average(*linear);
  average.update();
  const TensorDict other = ExponentialMovingAverage(*wider).state_dict();
  const std::string message = message_of<UsageError>([&] { average.load_state_dict(other); });
  EXPECT_NE(message.find("'module.weight' was saved as float[3, 4], and is float[3, 2] here"),
            std::string::npos)
      << message;
  EXPECT_THROW(average.load_state_dict({}), UsageError);
  TensorDict longer = average.state_dict();
  longer.emplace_back("module.extra", at::zeros({1}));
  EXPECT_THROW(average.load_state_dict(longer), UsageError);
  EXPECT_EQ(average.n_averaged(), 1);
}

TEST(ExponentialMovingAverage, RefusesADecayThatIsNone) {
  torch::nn::Linear linear(2, 3);
  EXPECT_THROW(ExponentialMovingAverage(*linear, {.decay = 1.1}), UsageError);
  EXPECT_THROW(ExponentialMovingAverage(*linear, {.decay = -0.1}), UsageError);
}

}  // namespace
}  // namespace lockstep::testing
