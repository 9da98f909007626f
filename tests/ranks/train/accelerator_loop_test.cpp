// Accelerator and loops that leave a group of batches or an epoch before its end.
#include <fstream>
#include <iterator>
#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>

#include "lockstep/train/accelerator.h"
#include "tests/ranks/train/accelerator_fixture.h"

namespace lockstep::testing {
namespace {

// A model whose gradient is 1, whatever the batch.
struct Slope : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) { return slope * at::ones_like(input); }
  at::Tensor slope = register_parameter("slope", at::zeros({1}));
};

TEST_F(AcceleratorState, AGroupOfBatchesThatTheLoopLeavesIsNoStep) {
  for (const bool zeroes_first : {true, false}) {
    SCOPED_TRACE(zeroes_first);
    const std::string folder = path_ + (zeroes_first ? "/first" : "/last");
    Accelerator accelerator({.gradient_accumulation_steps = 4, .directory = folder});
    Slope net;
    torch::optim::SGD sgd(net.parameters(), 1.0);
    torch::optim::StepLR step_lr(sgd, 1, 0.5);
    auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, step_lr);
    auto loader = accelerator.make_data_loader(sine_rows(12 * world_size_), {.batch_size = 2});
    for (int epoch = 0; epoch < 3; ++epoch) {
      const double rate = rate_of(sgd);
      int batches = 0;
      for (auto& batch : loader) {
        if (epoch < 2 && ++batches == 6) break;
        const auto accumulating = accelerator.accumulate();
        if (zeroes_first) optimizer.zero_grad();
        accelerator.backward(model.forward(batch.data).mean());
        const double before = net.slope.item<double>();
        optimizer.step();
        if (accelerator.sync_gradients()) {
          EXPECT_NEAR(before - net.slope.item<double>(), rate, 1e-6) << "the mean of ones";
        }
        if (!zeroes_first) optimizer.zero_grad();
      }
      EXPECT_TRUE(accelerator.sync_gradients());
      EXPECT_EQ(accelerator.steps(), epoch < 2 ? epoch + 1 : 4);
      if (epoch == 1) accelerator.save_state();
      const double before = net.slope.item<double>();
      optimizer.step();  // Of the batches that were left: none.
      if (epoch < 2) {
        EXPECT_EQ(net.slope.item<double>(), before);
      }
      scheduler.step();
      EXPECT_EQ(rate_of(sgd), epoch == 0 ? rate : rate / 2) << "LibTorch's first step leaves it";
      if (epoch == 2) break;
    }
    EXPECT_TRUE(same_bits_everywhere({net.slope.detach()}));
    accelerator.wait_for_everyone();
  }
}

TEST_F(AcceleratorTest, AWeightedGroupThatTheLoopLeavesHasNoPartInTheNextEpoch) {
  Accelerator accelerator({.gradient_accumulation_steps = 2});
  Slope net;
  torch::optim::SGD sgd(net.parameters(), 1.0);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  // Three batches of full size, and one of a sample.
  auto loader = accelerator.make_data_loader(sine_rows(6 * world_size_ + 1), {.batch_size = 2});
  for (int epoch = 0; epoch < 2; ++epoch) {
    int batches = 0;
    for (auto& batch : loader) {
      if (epoch == 0 && ++batches == 4) break;
      const auto accumulating = accelerator.accumulate();
      optimizer.zero_grad();
      const double before = net.slope.item<double>();
      accelerator.backward(model.forward(batch.data).mean());
      optimizer.step();
      if (accelerator.sync_gradients()) {
        EXPECT_NEAR(before - net.slope.item<double>(), 1, 1e-6) << "the mean of ones";
      }
    }
  }
  EXPECT_EQ(accelerator.steps(), 3);
}

TEST_F(AcceleratorTest, GradientsOfTwoOptimizersAreZeroedOncePerAccumulatedStep) {
  Accelerator accelerator({.gradient_accumulation_steps = 2});
  Slope first;
  Slope second;
  torch::optim::SGD first_sgd(first.parameters(), 1.0);
  torch::optim::SGD second_sgd(second.parameters(), 1.0);
  auto [model_1, model_2] = accelerator.prepare(first, second);
  auto [optimizer_1, optimizer_2] = accelerator.prepare(first_sgd, second_sgd);
  auto loader = accelerator.make_data_loader(sine_rows(8 * world_size_), {.batch_size = 2});
  for (const bool zeroes_after_step : {false, true}) {
    first.zero_grad();
    second.zero_grad();
    for (auto& batch : loader) {
      const auto accumulating = accelerator.accumulate();
      const double before = first.slope.item<double>() + 10 * second.slope.item<double>();
      for (const int one : {1, 2}) {
        auto& optimizer = one == 1 ? optimizer_1 : optimizer_2;
        auto& model = one == 1 ? model_1 : model_2;
        if (!zeroes_after_step) optimizer.zero_grad();
        accelerator.backward(model.forward(batch.data).mean());
        optimizer.step();
        if (zeroes_after_step) optimizer.zero_grad();
      }
      if (!accelerator.sync_gradients()) continue;
      const double after = first.slope.item<double>() + 10 * second.slope.item<double>();
      EXPECT_NEAR(before - after, 11, 1e-4) << "the means of ones, " << zeroes_after_step;
    }
  }
}

TEST_F(AcceleratorState, ALoopThatWasLeftEarlyGoesOnAsALiveOne) {
  const auto train = [&](bool is_resumed, int& epochs) {
    Accelerator accelerator({.directory = path_ + "/run", .sample_log_directory = path_ + "/data"});
    torch::nn::Sequential net = make_tanh_net();
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    auto loader = accelerator.make_data_loader(sine_rows(41), {.batch_size = 2});
    auto validation =
        accelerator.make_data_loader(sine_rows(13), {.batch_size = 2, .shuffle = false});
    EXPECT_EQ(accelerator.load_state(), is_resumed);
    Tensors seen;
    for (epochs = 0; loader.epoch() < 3; ++epochs) {
      if (loader.epoch() > 0) seen.clear();
      int batches = 0;
      for (auto& batch : loader) {
        optimizer.zero_grad();
        accelerator.backward(at::mse_loss(model(batch.data), batch.target));
        optimizer.step();
        seen.push_back(accelerator.gather_for_metrics(batch.target));
        if (++batches == 3) break;
      }
      for (auto& batch : validation) {
        seen.push_back(accelerator.gather_for_metrics(batch.target));
        break;
      }
      if (!is_resumed && loader.epoch() == 2) accelerator.save_state();
    }
    accelerator.wait_for_everyone();
    seen.push_back(net->parameters()[0].detach().clone());
    return seen;
  };
  int live_epochs = 0;
  int resumed_epochs = 0;
  const Tensors live = train(false, live_epochs);
  const Tensors resumed = train(true, resumed_epochs);
  EXPECT_EQ(live_epochs, 3);
  EXPECT_EQ(resumed_epochs, 1);
  ASSERT_EQ(resumed.size(), live.size());
  for (std::size_t i = 0; i < live.size(); ++i) EXPECT_TRUE(at::equal(resumed[i], live[i])) << i;
  std::ifstream log(path_ + "/data/samples.rank0.jsonl");
  const std::string text(std::istreambuf_iterator<char>(log), {});
  EXPECT_SAYS(text, "\"run\":1,\"event\":\"leave\",\"loader\":0,\"epoch\":1");
  EXPECT_SAYS(text, "\"run\":2,\"event\":\"go_to\",\"loader\":0,\"epoch\":2,\"consumed\":0");
  group_.barrier();
}

}  // namespace
}  // namespace lockstep::testing
