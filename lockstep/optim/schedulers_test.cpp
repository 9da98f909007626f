#include "lockstep/optim/schedulers.h"

#include <cmath>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/snapshot/internal/optimizer_state.h"
#include "lockstep/snapshot/save.h"

// Numbers are compared with Python's in tests/python/parity/optimizers.py.
namespace lockstep::testing {
namespace {

std::vector<at::Tensor> one_parameter() {
  return {at::zeros({1}).requires_grad_()};
}

double lr_of(const torch::optim::Optimizer& optimizer) {
  return optimizer.param_groups()[0].options().get_lr();
}

std::string scheduler_refusal(const std::function<void()>& action) {
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
  EXPECT_EQ(scheduler_refusal([&] { OneCycleLR(optimizer, {.max_lr = {1}, .total_steps = 10}); }),
            "OneCycleLR: the optimizer has neither momentum nor betas; set cycle_momentum = false");
  EXPECT_EQ(scheduler_refusal([&] {
              OneCycleLR(optimizer, {.max_lr = {1, 2}, .total_steps = 10, .cycle_momentum = false});
            }),
            "OneCycleLR: max_lr has 2 values, the optimizer 1 parameter groups; give one, or one "
            "for each");
  EXPECT_EQ(scheduler_refusal([&] { LinearLR(optimizer, {.start_factor = 0}); }),
            "LinearLR: start_factor=0 is out of range; it must be above 0, at most 1");
  EXPECT_NE(scheduler_refusal([&] { ReduceLROnPlateau(optimizer, {.factor = 1}); }), "no error");
  EXPECT_NE(scheduler_refusal([&] { StepLR(optimizer, {.step_size = 0}); }), "no error");
  torch::optim::Adagrad other(one_parameter());
  const auto made = std::make_shared<ExponentialLR>(optimizer, ExponentialLROptions{.gamma = 0.5});
  EXPECT_EQ(scheduler_refusal([&] { ChainedScheduler(other, {made}); }),
            "ChainedScheduler: scheduler 0 belongs to another optimizer");
  EXPECT_EQ(scheduler_refusal([&] {
              SequentialLR(optimizer, {made, made}, {});
            }),
            "SequentialLR: there are 2 schedulers and 0 milestones; give one milestone fewer than "
            "schedulers");
  const auto chain = std::make_shared<ChainedScheduler>(
      optimizer, std::vector<std::shared_ptr<LRScheduler>>{made});
  EXPECT_EQ(scheduler_refusal([&] { SequentialLR(optimizer, {chain}, {}); }),
            "SequentialLR: it takes no SequentialLR or ChainedScheduler; give their schedulers");
  made->step();
  EXPECT_EQ(scheduler_refusal([&] { ChainedScheduler(optimizer, {made}); }),
            "ChainedScheduler: scheduler 0 has already stepped; create a new one");
}

TEST(LRScheduler, ARefusedStateChangesNothing) {
  SGD optimizer(one_parameter(), 0.5);
  StepLR scheduler(optimizer, {.step_size = 2, .gamma = 0.5});
  const ExponentialLR other(optimizer, {.gamma = 0.25});
  EXPECT_NE(scheduler_refusal([&] { scheduler.load_state_dict(other.state_dict()); }), "no error");
  scheduler.step();
  scheduler.step();
  EXPECT_EQ(lr_of(optimizer), 0.25);
}

// `change` is made to the state that one scheduler gives, and another of its kind takes.
template <class Scheduler, class Options>
std::string refusal_of_state(const Options& options, const char* name, const c10::IValue& value) {
  SGD optimizer(one_parameter(), {.lr = 0.5, .momentum = 0.5});
  Scheduler scheduler(optimizer, options);
  const c10::IValue state = scheduler.state_dict();
  state.toGenericDict().insert_or_assign(name, value);
  const std::string refusal = scheduler_refusal([&] { scheduler.load_state_dict(state); });
  // With its own options still.
  scheduler.step();
  return refusal;
}

c10::IValue list_of(std::initializer_list<double> numbers) {
  c10::impl::GenericList list = make_list();
  for (const double number : numbers) list.push_back(number);
  return list;
}

TEST(LRScheduler, RefusesStatesOutOfRange) {
  const StepLROptions step{.step_size = 2};
  const std::int64_t zero = 0;
  EXPECT_EQ(refusal_of_state<StepLR>(step, "step_size", zero),
            "StepLR: step_size=0 is out of range; it must be at least 1");
  EXPECT_EQ(refusal_of_state<StepLR>(step, "step_size", 1.5),
            "load a scheduler's state: 'step_size' is 1.5, no whole number; load the state of the "
            "same scheduler");
  EXPECT_EQ(refusal_of_state<StepLR>(step, "step_size", 2.0), "no error");
  EXPECT_EQ(refusal_of_state<StepLR>(step, "base_lrs", list_of({0.5, 0.25})),
            "load a scheduler's state: it has 2 parameter groups, this one 1; load the state of "
            "the same scheduler, made after all groups were added");
  EXPECT_NE(refusal_of_state<StepLR>(step, "last_epoch", std::int64_t{1} << 40), "no error");
  EXPECT_NE(
      refusal_of_state<CosineAnnealingLR>(CosineAnnealingLROptions{.t_max = 5}, "T_max", zero),
      "no error");
  const CosineAnnealingWarmRestartsOptions restarts{.t_0 = 5, .t_mult = 2};
  using Restarts = CosineAnnealingWarmRestarts;
  EXPECT_NE(refusal_of_state<Restarts>(restarts, "T_0", zero), "no error");
  EXPECT_NE(refusal_of_state<Restarts>(restarts, "T_mult", zero), "no error");
  EXPECT_NE(refusal_of_state<Restarts>(restarts, "T_cur", 0.5).find("T_cur=0.5"),
            std::string::npos);
  EXPECT_NE(refusal_of_state<LinearLR>(LinearLROptions{}, "total_iters", zero), "no error");
  EXPECT_NE(refusal_of_state<PolynomialLR>(PolynomialLROptions{}, "total_iters", zero), "no error");
  EXPECT_NE(refusal_of_state<ConstantLR>(ConstantLROptions{}, "factor", 0.0), "no error");
  EXPECT_NE(refusal_of_state<OneCycleLR>(OneCycleLROptions{.max_lr = {1}, .total_steps = 5},
                                         "total_steps", zero),
            "no error");
}

TEST(LRScheduler, RefusesMilestonesOutOfRange) {
  for (const std::int64_t count : {std::int64_t{-1}, std::int64_t{1} << 50}) {
    c10::impl::GenericDict milestones = make_dict();
    milestones.insert_or_assign(std::int64_t{3}, count);
    EXPECT_NE(refusal_of_state<MultiStepLR>(MultiStepLROptions{.milestones = {2}}, "milestones",
                                            milestones)
                  .find("'milestones' has 3"),
              std::string::npos);
  }
}

TEST(LRScheduler, RefusesTheStateOfAnother) {
  SGD optimizer(one_parameter(), 0.5);
  ExponentialLR exponential(optimizer, {.gamma = 0.5});
  const StepLR step(optimizer, {.step_size = 2});
  const MultiStepLR multi(optimizer, {.milestones = {2}});
  EXPECT_EQ(scheduler_refusal([&] { exponential.load_state_dict(step.state_dict()); }),
            "load a scheduler's state: it has 'step_size', which is another scheduler's; load the "
            "state of the same scheduler");
  EXPECT_NE(scheduler_refusal([&] { exponential.load_state_dict(multi.state_dict()); }),
            "no error");
}

TEST(SequentialLR, ARefusedStateChangesNoScheduler) {
  SGD optimizer(one_parameter(), 0.5);
  const auto make = [&](double gamma) {
    return SequentialLR(optimizer,
                        {std::make_shared<ExponentialLR>(optimizer, ExponentialLROptions{gamma}),
                         std::make_shared<StepLR>(optimizer, StepLROptions{.step_size = 2})},
                        {5});
  };
  SequentialLR scheduler = make(0.5);
  const c10::IValue state = make(0.25).state_dict();
  state.toGenericDict()
      .at("_schedulers")
      .toListRef()[1]
      .toGenericDict()
      .insert_or_assign("step_size", std::int64_t{0});
  EXPECT_NE(scheduler_refusal([&] { scheduler.load_state_dict(state); }), "no error");
  scheduler.step();
  EXPECT_EQ(lr_of(optimizer), 0.25);
}

// As Accelerator rolls back steps: it sets the count of the outer scheduler, not of those in it.
struct RolledBack : torch::optim::LRScheduler {
  static void roll_back(LRScheduler& scheduler, int steps) {
    scheduler.*(&RolledBack::step_count_) -= static_cast<unsigned>(steps);
  }
};

// A program that saves after a rollback loads as one that never made the steps.
TEST(SequentialLR, AfterARollbackItsStateLoads) {
  struct Run {
    SGD optimizer{one_parameter(), 0.5};
    SequentialLR scheduler{optimizer,
                           {std::make_shared<CosineAnnealingWarmRestarts>(
                                optimizer, CosineAnnealingWarmRestartsOptions{.t_0 = 3}),
                            std::make_shared<ExponentialLR>(optimizer, ExponentialLROptions{0.5}),
                            std::make_shared<StepLR>(optimizer, StepLROptions{.step_size = 2})},
                           {8, 11}};
    double lr() { return lr_of(optimizer); }
    void set_lr(double lr) { optimizer.param_groups()[0].options().set_lr(lr); }
  };
  for (int steps = 0; steps < 14; ++steps) {
    for (int rolled_back = 1; rolled_back < 5; ++rolled_back) {
      Run undisturbed;
      Run disturbed;
      Run resumed;
      for (int i = 0; i < steps; ++i) undisturbed.scheduler.step();
      for (int i = 0; i < steps + rolled_back; ++i) disturbed.scheduler.step();
      RolledBack::roll_back(disturbed.scheduler, rolled_back);
      const c10::IValue state = disturbed.scheduler.state_dict();
      ASSERT_EQ(scheduler_refusal([&] { resumed.scheduler.load_state_dict(state); }), "no error")
          << steps << " steps, " << rolled_back << " rolled back";
      resumed.set_lr(undisturbed.lr());
      disturbed.set_lr(undisturbed.lr());
      for (int i = 0; i < 8; ++i) {
        for (Run* const run : {&undisturbed, &disturbed, &resumed}) run->scheduler.step();
        EXPECT_EQ(resumed.lr(), undisturbed.lr()) << steps << " steps, " << rolled_back;
        EXPECT_EQ(disturbed.lr(), undisturbed.lr()) << steps << " steps, " << rolled_back;
      }
    }
  }
}

// Where Python divides by zero: in the constructor, or at the last step.
TEST(OneCycleLR, RefusesPhasesWithoutSteps) {
  SGD optimizer(one_parameter(), {.lr = 0.5, .momentum = 0.5});
  const auto refusal = [&](double pct_start, std::int64_t steps, bool three_phase) {
    return scheduler_refusal([&] {
      OneCycleLR scheduler(optimizer, {.max_lr = {1},
                                       .total_steps = steps,
                                       .pct_start = pct_start,
                                       .three_phase = three_phase});
      for (std::int64_t i = 0; i < steps; ++i) {
        scheduler.step();
        EXPECT_TRUE(std::isfinite(lr_of(optimizer)));
      }
    });
  };
  EXPECT_EQ(refusal(0.1, 10, false),
            "OneCycleLR: pct_start=0.1, total_steps=10 give a phase of no steps; change one of "
            "them so that pct_start · total_steps is neither 1 nor total_steps");
  EXPECT_NE(refusal(1.0, 10, false), "no error");
  EXPECT_NE(refusal(0.1, 10, true), "no error");
  EXPECT_NE(refusal(0.55, 10, true), "no error");
  EXPECT_EQ(refusal(0.0, 10, false), "no error");
  EXPECT_EQ(refusal(0.3, 10, false), "no error");
  EXPECT_EQ(refusal(0.3, 10, true), "no error");
  EXPECT_EQ(refusal(0.5, 1, false), "no error");
}

TEST(OneCycleLR, GoesOnAfterTheStateOfLibTorchsOptimizer) {
  const std::vector<at::Tensor> parameters = one_parameter();
  const torch::optim::SGD theirs(parameters, torch::optim::SGDOptions(0.5).momentum(0.5));
  SGD optimizer(parameters, {.lr = 0.5, .momentum = 0.5});
  OneCycleLR scheduler(optimizer, {.max_lr = {1}, .total_steps = 10});
  const double first = lr_of(optimizer);
  optimizer.load_state_dict(optimizer_state_dict(theirs));
  scheduler.step();
  EXPECT_GT(lr_of(optimizer), first);
  optimizer.add_param_group(torch::optim::OptimizerParamGroup(one_parameter()));
  EXPECT_NE(scheduler_refusal([&] { scheduler.step(); }).find("parameter group 1 has no '"),
            std::string::npos);
}

TEST(OneCycleLR, RefusesMoreSteps) {
  SGD optimizer(one_parameter(), {.lr = 0.5, .momentum = 0.5});
  OneCycleLR scheduler(optimizer, {.max_lr = {1}, .total_steps = 3});
  for (int i = 0; i < 3; ++i) scheduler.step();
  EXPECT_EQ(scheduler_refusal([&] { scheduler.step(); }),
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
