// A module that lists a parameter under two names: everything takes it once, as PyTorch does.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/ddp/hooks.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/exponential_moving_average.h"
#include "lockstep/optim/sharded_optimizer.h"
#include "tests/ranks/ddp_fixture.h"

namespace lockstep::testing {
namespace {

// The layer is listed twice, or once for an oracle; its weight a third time.
struct SharedLayersImpl : torch::nn::Module {
  explicit SharedLayersImpl(std::int64_t width, bool is_listed_once = false) : layer(width, width) {
    register_module("first", layer);
    if (is_listed_once) return;
    register_module("second", layer);
    register_parameter("third", layer->weight);
  }
  at::Tensor forward(const at::Tensor& x) { return layer(at::tanh(layer(x))); }
  torch::nn::Linear layer;
};
TORCH_MODULE(SharedLayers);

class SharedParameters : public DdpTest {
 protected:
  at::Tensor inputs(std::int64_t width, int step) const {
    return at::sin(at::arange(3 * width, at::kFloat) * (1 + rank_) + step).view({3, width});
  }
};

// Of both widths one is below and one above the size of gradients that travel alone.
TEST_F(SharedParameters, GradientsAreAveragedOnce) {
  for (const std::int64_t width : {5, 300}) {
    for (const int way : {0, 1, 2, 3}) {
      SCOPED_TRACE(concat("width ", width, " way ", way));
      DistributedDataParallelOptions options;
      options.gradient_as_bucket_view = way == 1;
      options.find_unused_parameters = way == 2;
      if (way == 3) options.comm_hook = std::make_shared<AllReduceHook>();
      DistributedDataParallel model(SharedLayers(width), options);
      EXPECT_EQ(model.parameters().size(), 2U);
      EXPECT_EQ(model->parameters().size(), 5U);
      SharedLayers plain(width, true);
      {
        const at::NoGradGuard no_grad;
        plain->layer->weight.copy_(model->layer->weight);
        plain->layer->bias.copy_(model->layer->bias);
      }
      for (int step = 0; step < 3; ++step) {  // The second adds to the first.
        if (step != 1) {
          model->zero_grad();
          plain->zero_grad();
        }
        model(inputs(width, step)).square().mean().backward();
        at::Tensor loss = at::zeros({});
        for (int rank = 0; rank < world_size_; ++rank) {
          const at::Tensor of_rank =
              at::sin(at::arange(3 * width, at::kFloat) * (1 + rank) + step).view({3, width});
          loss = loss + plain(of_rank).square().mean() / world_size_;
        }
        loss.backward();
        expect_close_gradients(model.parameters(), plain->parameters());
      }
    }
  }
}

TEST_F(SharedParameters, TheWrappersListTrainsAsPyTorchDoes) {
  DistributedDataParallel model(SharedLayers(6), {});
  SharedLayers plain(6, true);
  {
    const at::NoGradGuard no_grad;
    plain->layer->weight.copy_(model->layer->weight);
    plain->layer->bias.copy_(model->layer->bias);
  }
  ShardedOptimizer<torch::optim::AdamW> ours(model.parameters(), 0.1);
  torch::optim::AdamW theirs(plain->parameters(), 0.1);
  ExponentialMovingAverage our_average(*model, {.decay = 0.5});
  ExponentialMovingAverage their_average(*plain, {.decay = 0.5});
  GradScaler scaler({.init_scale = 8});
  const at::Tensor x = at::sin(at::arange(18, at::kFloat)).view({3, 6});  // on all ranks
  for (int step = 0; step < 4; ++step) {
    ours.zero_grad();
    theirs.zero_grad();
    scaler.scale(model(x).square().mean()).backward();
    scaler.unscale_(ours);
    plain(x).square().mean().backward();
    const double norm = clip_grad_norm_(model->parameters(), 0.1);  // each name's
    EXPECT_NEAR(norm, clip_grad_norm_(plain->parameters(), 0.1), 1e-5);
    scaler.step(ours);
    scaler.update();
    theirs.step();
    our_average.update();
    their_average.update();
  }
  EXPECT_TRUE(at::allclose(model->layer->weight, plain->layer->weight, 1e-4, 1e-5));
  const AveragedWeights our_weights = our_average.apply();
  const AveragedWeights their_weights = their_average.apply();
  EXPECT_TRUE(at::allclose(model->layer->weight, plain->layer->weight, 1e-4, 1e-5));
  EXPECT_TRUE(same_bits_everywhere({model->layer->weight.detach()}));
}

// What LibTorch's optimizers do with one that they are given twice, as the guide says: two steps.
TEST_F(SharedParameters, LibTorchsOptimizersStepTwice) {
  const at::Tensor parameter = at::zeros({2}).requires_grad_();
  parameter.mutable_grad() = at::ones({2});
  torch::optim::SGD plain({parameter, parameter}, 0.5);
  plain.step();
  EXPECT_TRUE(at::equal(parameter, at::full({2}, -1.0)));
}

}  // namespace
}  // namespace lockstep::testing
