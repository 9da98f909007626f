// Autocast, GradScaler and SyncBatchNorm on a CUDA device.
#include <cmath>
#include <limits>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "lockstep/amp/autocast.h"
#include "lockstep/amp/grad_scaler.h"
#include "lockstep/base/error.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/nn/convert_sync_batchnorm.h"
#include "tests/ranks/cuda/fixture.h"

namespace lockstep::testing {
namespace {

class CudaPrecision : public CudaTest {
 protected:
  static torch::nn::Linear layer() {
    torch::nn::Linear linear(6, 4);
    const at::NoGradGuard no_grad;
    linear->weight.copy_(at::sin(at::arange(24, at::kDouble)).view({4, 6}));
    linear->bias.copy_(at::cos(at::arange(4, at::kDouble)));
    return linear;
  }
};

TEST_F(CudaPrecision, AutocastTakesItsDefaultAndTheDtypeThatIsNamed) {
  torch::nn::Linear linear = layer();
  linear->to(device_);
  const at::Tensor input = wave(3, 6, 1).to(on_device());
  const at::Tensor expected = linear(input);
  EXPECT_EQ(expected.scalar_type(), at::kFloat);
  {
    const Autocast autocast({.device_type = at::kCUDA});
    EXPECT_EQ(linear(input).scalar_type(), at::kHalf);
    EXPECT_TRUE(is_near(linear(input), expected, 1e-2));
  }
  {
    const Autocast autocast({.device_type = at::kCUDA, .dtype = at::kBFloat16});
    EXPECT_EQ(linear(input).scalar_type(), at::kBFloat16);
  }
  EXPECT_EQ(linear(input).scalar_type(), at::kFloat);
}

// The oracle scales nothing and trains in float64.
TEST_F(CudaPrecision, ScaledTrainingSkipsStepsThatOverflowOnAllRanks) {
  NEEDS_CUDA_TENSORS();
  torch::nn::Linear linear = layer();
  torch::nn::Linear oracle = layer();
  oracle->to(at::kDouble);
  linear->to(device_);
  DistributedDataParallel model(linear, {.process_group = group_});
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  torch::optim::SGD reference(oracle->parameters(), 0.1);
  GradScaler scaler({.init_scale = 1024, .growth_interval = 2});
  double scale = 1024;
  int good = 0;
  for (const bool overflows : {false, true, false, false, true, false}) {
    optimizer.zero_grad();
    delay();
    at::Tensor loss;
    {
      const Autocast autocast({.device_type = at::kCUDA});
      loss = model(wave(5, 6, rank_).to(on_device())).to(at::kFloat).square().mean();
    }
    if (overflows && rank_ == world_size_ - 1) loss = loss * std::numeric_limits<float>::infinity();
    scaler.scale(loss).backward();
    EXPECT_EQ(scaler.step(optimizer), !overflows);
    scaler.update();
    good = overflows ? 0 : good + 1;
    if (overflows) scale /= 2;
    if (good == 2) scale *= 2;
    if (good == 2) good = 0;
    EXPECT_EQ(scaler.get_scale(), scale);
    if (overflows) continue;
    reference.zero_grad();
    for (int rank = 0; rank < world_size_; ++rank) {
      oracle(wave(5, 6, rank)).square().mean().div(world_size_).backward();
    }
    reference.step();
  }
  EXPECT_TRUE(is_near(linear->weight, oracle->weight, 1e-2));
  EXPECT_TRUE(same_bits_everywhere({linear->weight.detach(), linear->bias.detach()}));
}

TEST_F(CudaPrecision, AGroupAgreesOnOverflows) {
  const at::Tensor parameter = at::ones({3}, on_device()).requires_grad_();
  torch::optim::SGD optimizer({parameter}, 0.5);
  GradScaler scaler({.init_scale = 8, .process_group = group_});
  const bool overflows = rank_ == world_size_ - 1;
  const double factor = overflows ? std::numeric_limits<double>::infinity() : 1;
  scaler.scale(parameter.sum() * factor).backward();
  EXPECT_FALSE(scaler.step(optimizer));
  EXPECT_TRUE(at::equal(parameter.detach().cpu(), at::ones({3})));
}

// The oracle: LibTorch's batch norm in float64 on the CPU, of the batches of all ranks.
TEST_F(CudaPrecision, SyncBatchNormNormalizesTheBatchOfAllRanks) {
  NEEDS_CUDA_TENSORS();
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf}) {
    SCOPED_TRACE(c10::toString(dtype));
    torch::nn::Sequential net(torch::nn::Conv2d(2, 7, 3), torch::nn::BatchNorm2d(7));
    double seed = 0;
    for (at::Tensor& parameter : net->parameters()) {
      const at::NoGradGuard no_grad;
      parameter.copy_(wave(parameter.numel(), 1, ++seed).view_as(parameter) + 0.5);
    }
    torch::nn::Sequential oracle(torch::nn::Conv2d(2, 7, 3), torch::nn::BatchNorm2d(7));
    oracle->to(at::kDouble);
    copy_state(*net, *oracle);
    net->to(device_);
    convert_sync_batchnorm(*net, {.process_group = group_});
    DistributedDataParallel model(net.ptr(), {.process_group = group_});
    const auto rows = [](int rank) { return std::int64_t{2 + rank}; };
    const auto images = [&](int rank) {
      return wave(rows(rank), 2 * 25, 3.0 + rank).view({rows(rank), 2, 5, 5});
    };
    std::int64_t all_rows = 0;
    std::int64_t before = 0;
    Tensors all;
    for (int rank = 0; rank < world_size_; ++rank) {
      if (rank < rank_) before += rows(rank);
      all_rows += rows(rank);
      all.push_back(images(rank));
    }
    const at::Tensor expected = oracle->forward(at::cat(all));
    const at::Tensor weights = wave(all_rows, 7 * 9, 9).view({all_rows, 7, 3, 3});
    (expected * weights).sum().backward();

    at::Tensor output;
    delay();
    {
      const Autocast autocast(
          {.device_type = at::kCUDA, .dtype = at::kHalf, .enabled = dtype == at::kHalf});
      output = model(images(rank_).to(on_device()));
    }
    const double tolerance = dtype == at::kHalf ? 2e-2 : 1e-4;
    EXPECT_TRUE(is_near(output, expected.narrow(0, before, rows(rank_)), tolerance));
    const at::Tensor own_weights = weights.narrow(0, before, rows(rank_)).to(on_device());
    (output.to(at::kFloat) * own_weights).sum().mul(world_size_).backward();
    for (std::size_t i = 0; i < net->parameters().size(); ++i) {
      if (i == 1) continue;  // A bias before a norm has the gradient 0.
      EXPECT_TRUE(is_near(net->parameters()[i].grad(), oracle->parameters()[i].grad(),
                          dtype == at::kHalf ? 5e-2 : 1e-3))
          << i;
    }
    EXPECT_TRUE(is_near(net->buffers()[0], oracle->buffers()[0], tolerance));
    EXPECT_TRUE(is_near(net->buffers()[1], oracle->buffers()[1], tolerance));
  }
}

}  // namespace
}  // namespace lockstep::testing
