#include "lockstep/optim/schedulers.h"

#include <cmath>
#include <functional>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/snapshot/save.h"

// Numbers are compared with Python's in tests/python/optimizers.py.
namespace lockstep::testing {
namespace {

std::vector<at::Tensor> one_parameter() {
  return {at::zeros({1}).requires_grad_()};
}

double lr_of(const torch::optim::Optimizer& optimizer) {
  return optimizer.param_groups()[0].options().get_lr();
}

std::string refusal_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(LRScheduler, TheConstructorSetsTheFirstRate) {
  torch::optim::SGD optimizer(one_parameter(), 0.5);
  LinearLR scheduler(optimizer, {.start_factor = 0.5, .total_iters = 2});
  EXPECT_EQ(lr_of(optimizer), 0.25);
  EXPECT_EQ(scheduler.get_last_lr(), std::vector<double>{0.25});
  scheduler.step();
  scheduler.step();
  EXPECT_EQ(lr_of(optimizer), 0.5);
  EXPECT_EQ(scheduler.last_epoch(), 2);
}

// Where the learning rate was before the first scheduler that the optimizer has.
TEST(LRScheduler, SchedulersOfOneOptimizerHaveOneInitialRate) {
  const auto expect_shared = [](torch::optim::Optimizer& optimizer) {
    LinearLR warm_up(optimizer, {.start_factor = 0.5});
    CosineAnnealingWarmRestarts cosine(optimizer, {.t_0 = 10});
    EXPECT_EQ(lr_of(optimizer), 0.5);
  };
  torch::optim::SGD theirs(one_parameter(), 0.5);
  expect_shared(theirs);
  SGD ours(one_parameter(), 0.5);
  expect_shared(ours);
  // Without a scheduler there is none to remember it for LibTorch's.
  theirs.param_groups()[0].options().set_lr(0.125);
  CosineAnnealingWarmRestarts cosine(theirs, {.t_0 = 10});
  EXPECT_EQ(lr_of(theirs), 0.125);
}

TEST(LRScheduler, RefusesOptionsOutOfRange) {
  torch::optim::Adagrad optimizer(one_parameter());
  EXPECT_EQ(refusal_of([&] { OneCycleLR(optimizer, {.max_lr = {1}, .total_steps = 10}); }),
            "OneCycleLR: the optimizer has neither momentum nor betas; set cycle_momentum = false");
  EXPECT_EQ(refusal_of([&] {
              OneCycleLR(optimizer, {.max_lr = {1, 2}, .total_steps = 10, .cycle_momentum = false});
            }),
            "OneCycleLR: max_lr has 2 values, the optimizer 1 parameter groups; give one, or one "
            "for each");
  EXPECT_EQ(refusal_of([&] { LinearLR(optimizer, {.start_factor = 0}); }),
            "LinearLR: start_factor=0 is out of range; it must be above 0, at most 1");
  EXPECT_NE(refusal_of([&] { ReduceLROnPlateau(optimizer, {.factor = 1}); }), "no error");
  EXPECT_NE(refusal_of([&] { StepLR(optimizer, {.step_size = 0}); }), "no error");
  torch::optim::Adagrad other(one_parameter());
  const auto made = std::make_shared<ExponentialLR>(optimizer, ExponentialLROptions{.gamma = 0.5});
  EXPECT_EQ(refusal_of([&] { ChainedScheduler(other, {made}); }),
            "ChainedScheduler: scheduler 0 is of another optimizer");
  EXPECT_EQ(refusal_of([&] {
              SequentialLR(optimizer, {made, made}, {});
            }),
            "SequentialLR: there are 2 schedulers and 0 milestones; give one milestone fewer than "
            "schedulers");
  const auto chain = std::make_shared<ChainedScheduler>(
      optimizer, std::vector<std::shared_ptr<LRScheduler>>{made});
  EXPECT_EQ(refusal_of([&] { SequentialLR(optimizer, {chain}, {}); }),
            "SequentialLR: it takes no SequentialLR or ChainedScheduler; give their schedulers");
  made->step();
  EXPECT_EQ(refusal_of([&] { ChainedScheduler(optimizer, {made}); }),
            "ChainedScheduler: scheduler 0 has made steps already; make a new one");
}

TEST(LRScheduler, ARefusedStateChangesNothing) {
  SGD optimizer(one_parameter(), 0.5);
  StepLR scheduler(optimizer, {.step_size = 2, .gamma = 0.5});
  const ExponentialLR other(optimizer, {.gamma = 0.25});
  EXPECT_NE(refusal_of([&] { scheduler.load_state_dict(other.state_dict()); }), "no error");
  scheduler.step();
  scheduler.step();
  EXPECT_EQ(lr_of(optimizer), 0.25);
}

TEST(OneCycleLR, RefusesMoreSteps) {
  SGD optimizer(one_parameter(), {.lr = 0.5, .momentum = 0.5});
  OneCycleLR scheduler(optimizer, {.max_lr = {1}, .total_steps = 3});
  for (int i = 0; i < 3; ++i) scheduler.step();
  EXPECT_EQ(refusal_of([&] { scheduler.step(); }),
            "OneCycleLR::step: step 4 of 3; give the number of all steps as total_steps");
}

// What registering with an Accelerator restores.
TEST(ReduceLROnPlateau, ContinuesFromItsTensors) {
  SGD first(one_parameter(), 0.5);
  SGD second(one_parameter(), 0.5);
  ReduceLROnPlateau one(first, {.factor = 0.5, .patience = 2});
  ReduceLROnPlateau two(second, {.factor = 0.5, .patience = 2});
  for (const double metric : {1.0, 2.0, 2.0}) one.step(metric);
  two.tensors()[0].second.copy_(one.tensors()[0].second);
  one.step(2.0);
  two.step(2.0);
  EXPECT_EQ(lr_of(first), 0.25);
  EXPECT_EQ(lr_of(second), 0.25);
}

}  // namespace
}  // namespace lockstep::testing
