// Optimizers, clipping and averages of parameters on a CUDA device. The oracle are LibTorch's
// optimizers in float64 on the CPU.
#include "lockstep/optim/optimizers.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/exponential_moving_average.h"
#include "lockstep/optim/sharded_optimizer.h"
#include "tests/ranks/cuda/fixture.h"

namespace lockstep::testing {
namespace {

class CudaOptimizers : public CudaTest {
 protected:
  std::vector<at::Tensor> start(const at::TensorOptions& options) const {
    std::vector<at::Tensor> parameters;
    for (const std::int64_t rows : {1, 37, 513}) {
      parameters.push_back(wave(rows, 129, 0.5).to(options).requires_grad_());
    }
    return parameters;
  }
  void set_gradients(std::vector<at::Tensor>& parameters, int step) const {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      at::Tensor& parameter = parameters[i];
      const double seed = 2.0 * step + static_cast<double>(i);
      const at::Tensor gradient = wave(parameter.size(0), parameter.size(1), seed);
      parameter.mutable_grad() = gradient.to(parameter.options().requires_grad(false));
    }
  }

  template <class Ours, class Theirs, class Options, class Reference>
  void expect_like(const Options& options, const Reference& reference) const {
    std::vector<at::Tensor> parameters = start(on_device());
    std::vector<at::Tensor> expected = start(at::kDouble);
    Ours optimizer(parameters, options);
    Theirs oracle(expected, reference);
    for (int step = 0; step < 5; ++step) {
      delay();
      set_gradients(parameters, step);
      set_gradients(expected, step);
      const auto version = parameters[0]._version();
      optimizer.step();
      oracle.step();
      EXPECT_GT(parameters[0]._version(), version);
    }
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_TRUE(is_near(parameters[i], expected[i], 1e-5)) << i;
    }
  }
};

TEST_F(CudaOptimizers, FusedOnesStepAsLibTorchs) {
  namespace optim = torch::optim;
  expect_like<SGD, optim::SGD>(SGDOptions{.lr = 0.1}, optim::SGDOptions(0.1));
  expect_like<SGD, optim::SGD>(
      SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 1e-2, .nesterov = true},
      optim::SGDOptions(0.1).momentum(0.9).weight_decay(1e-2).nesterov(true));
  expect_like<Adam, optim::Adam>(AdamOptions{.lr = 1e-2, .weight_decay = 1e-2},
                                 optim::AdamOptions(1e-2).weight_decay(1e-2));
  expect_like<Adam, optim::Adam>(AdamOptions{.lr = 1e-2, .amsgrad = true},
                                 optim::AdamOptions(1e-2).amsgrad(true));
  expect_like<AdamW, optim::AdamW>(AdamWOptions{.lr = 1e-2},
                                   optim::AdamWOptions(1e-2).weight_decay(1e-2));
  expect_like<Adagrad, optim::Adagrad>(AdagradOptions{.lr = 1e-2, .lr_decay = 0.1},
                                       optim::AdagradOptions(1e-2).lr_decay(0.1));
}

TEST_F(CudaOptimizers, OnesWithoutAKernelAreRefusedInOneLine) {
  std::vector<at::Tensor> parameters = start(on_device());
  set_gradients(parameters, 0);
  const auto expect_refusal = [&](auto optimizer) {
    const std::string message = message_of<UsageError>([&] { optimizer.step(); });
    EXPECT_SAYS(message, "is on cuda:0; on a CUDA device use SGD, Adam, AdamW or Adagrad");
    EXPECT_EQ(message.find('\n'), std::string::npos);
  };
  expect_refusal(Lion(parameters, LionOptions{}));
  expect_refusal(LAMB(parameters, LAMBOptions{}));
  expect_refusal(RMSprop(parameters, RMSpropOptions{}));
  EXPECT_TRUE(is_near(parameters[1], start(at::kFloat)[1], 0));
}

TEST_F(CudaOptimizers, GradientsAreClippedAsByLibTorch) {
  std::vector<at::Tensor> parameters = start(on_device());
  std::vector<at::Tensor> expected = start(at::kDouble);
  set_gradients(parameters, 1);
  set_gradients(expected, 1);
  delay();
  const double norm = clip_grad_norm_(parameters, 1.5);
  EXPECT_NEAR(norm, torch::nn::utils::clip_grad_norm_(expected, 1.5), 1e-4);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(is_near(parameters[i].grad(), expected[i].grad(), 1e-5)) << i;
  }
}

TEST_F(CudaOptimizers, AnAverageFollowsTheModel) {
  torch::nn::Linear linear(6, 4);
  linear->to(device_);
  ExponentialMovingAverage average(*linear, {.decay = 0.75});
  at::Tensor expected;
  for (int step = 0; step < 4; ++step) {
    const at::NoGradGuard no_grad;
    delay();
    linear->weight.copy_(wave(4, 6, step));
    average.update();
    expected = step == 0 ? wave(4, 6, 0) : expected * 0.75 + wave(4, 6, step) * 0.25;
  }
  {
    const auto applied = average.apply();
    EXPECT_TRUE(is_near(linear->weight, expected, 1e-6));
  }
  EXPECT_TRUE(is_near(linear->weight, wave(4, 6, 3), 1e-6));
}

TEST_F(CudaOptimizers, AShardedOneStepsAsOneThatIsNot) {
  NEEDS_CUDA_TENSORS();
  for (const bool as_view : {false, true}) {
    std::vector<at::Tensor> parameters = start(on_device());
    std::vector<at::Tensor> expected = start(at::kDouble);
    ShardedOptimizer<torch::optim::Adam> optimizer(
        parameters, torch::optim::AdamOptions(1e-2),
        {.process_group = group_, .parameters_as_bucket_view = as_view});
    torch::optim::Adam oracle(expected, torch::optim::AdamOptions(1e-2));
    for (int step = 0; step < 3; ++step) {
      delay();
      set_gradients(parameters, step);
      set_gradients(expected, step);
      optimizer.step();
      oracle.step();
    }
    Tensors all;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_TRUE(is_near(parameters[i], expected[i], 1e-5)) << i;
      all.push_back(parameters[i].detach());
    }
    EXPECT_TRUE(same_bits_everywhere(all));
    EXPECT_FALSE(optimizer.consolidated_state_dict(0).isNone() && rank_ == 0);
  }
}

}  // namespace
}  // namespace lockstep::testing
