// GradScaler where ranks hold different gradients, and behind DistributedDataParallel.
#include "lockstep/amp/grad_scaler.h"

#include <limits>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "lockstep/amp/autocast.h"
#include "lockstep/base/error.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "tests/ranks/fixture.h"

namespace lockstep::testing {
namespace {

class ScaledTraining : public Conformance {
 protected:
  // `value`, but an infinity on the last rank where it overflows.
  double or_infinity(double value, bool overflows) const {
    const bool here = overflows && rank_ == world_size_ - 1;
    return here ? std::numeric_limits<double>::infinity() : value;
  }
};

TEST_F(ScaledTraining, WithAGroupOneRanksOverflowSkipsTheStepOfAll) {
  const at::Tensor parameter = at::ones({3}).requires_grad_();  // each rank's own gradient
  torch::optim::SGD optimizer({parameter}, 0.5);
  GradScaler scaler({.init_scale = 8, .growth_interval = 2, .process_group = group_});
  double scale = 8;
  int good = 0;
  for (const bool overflows : {false, true, false, false, true}) {
    optimizer.zero_grad();
    scaler.scale(parameter.sum() * or_infinity(1 + rank_, overflows)).backward();
    EXPECT_EQ(scaler.step(optimizer), !overflows);
    scaler.update();
    good = overflows ? 0 : good + 1;
    if (overflows) scale /= 2;
    if (good == 2) scale *= 2;
    EXPECT_EQ(scaler.get_scale(), scale);
  }
  EXPECT_TRUE(at::equal(parameter, at::full({3}, 1 - 3 * 0.5 * (1 + rank_))));
}

TEST_F(ScaledTraining, WithAGroupARankWithoutGradientsFollowsTheOthers) {
  const at::Tensor parameter = at::ones({3}).requires_grad_();
  torch::optim::SGD optimizer({parameter}, 0.5);
  GradScaler scaler({.process_group = group_});
  const at::Tensor loss = scaler.scale(parameter.sum() * or_infinity(1, true));
  if (rank_ == world_size_ - 1) loss.backward();
  EXPECT_FALSE(scaler.step(optimizer));
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 32768);
  optimizer.zero_grad();
  EXPECT_SAYS(message_of<UsageError>([&] { scaler.step(optimizer); }), "has a gradient");
}

TEST_F(ScaledTraining, BehindDistributedDataParallelNoGroupIsNeeded) {
  DistributedDataParallel model(torch::nn::Linear(4, 2), {.process_group = group_});
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  GradScaler scaler;
  for (const bool overflows : {false, true, false}) {
    optimizer.zero_grad();
    at::Tensor loss;
    {
      const Autocast autocast;
      loss = model(at::full({2, 4}, 1.0 + rank_)).pow(2).mean() * or_infinity(1, overflows);
    }
    scaler.scale(loss).backward();
    EXPECT_EQ(scaler.step(optimizer), !overflows);
    scaler.update();
    EXPECT_TRUE(same_bits_everywhere({model->weight.detach(), model->bias.detach()}));
  }
  EXPECT_EQ(scaler.get_scale(), 32768);
}

}  // namespace
}  // namespace lockstep::testing
