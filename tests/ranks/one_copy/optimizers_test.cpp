// LibTorch's optimizers over one copy per machine: each rank updates its share.
#include "lockstep/optim/optimizers.h"

#include <functional>
#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/base/error.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/sharded_optimizer.h"
#include "tests/ranks/one_copy/fixture.h"

namespace lockstep::testing {
namespace {

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(const Tensors&)>;

template <class Optimizer, class Options>
MakeOptimizer maker(const Options& options) {
  return
      [=](const Tensors& parameters) { return std::make_unique<Optimizer>(parameters, options); };
}

class LibTorchOneCopy : public OneCopy {
 protected:
  static std::vector<MakeOptimizer> all_kinds() {
    return {maker<torch::optim::SGD>(torch::optim::SGDOptions(0.1)),
            maker<torch::optim::SGD>(
                torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.1)),
            maker<torch::optim::Adam>(torch::optim::AdamOptions(0.1).weight_decay(0.1)),
            maker<torch::optim::Adam>(torch::optim::AdamOptions(0.1).amsgrad(true)),
            maker<torch::optim::AdamW>(torch::optim::AdamWOptions(0.1)),
            maker<torch::optim::RMSprop>(
                torch::optim::RMSpropOptions(0.1).momentum(0.9).centered(true)),
            maker<torch::optim::Adagrad>(
                torch::optim::AdagradOptions(0.1).initial_accumulator_value(0.5).lr_decay(0.1))};
  }

  void step(Model& model, torch::optim::Optimizer& optimizer, int number) const {
    optimizer.zero_grad();
    backward(model, number);
    step_optimizer(optimizer);
  }
};

TEST_F(LibTorchOneCopy, HasTheBitsOfReplicas) {
  NEEDS_COPIES();
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    SCOPED_TRACE(c10::toString(dtype));
    for (std::size_t kind = 0; const MakeOptimizer& make : all_kinds()) {
      SCOPED_TRACE(kind++);
      Model model = model_of(true, kParameterSizes, dtype);
      Model replica = model_of(false, kParameterSizes, dtype);
      const auto optimizer = make(model->parameters());
      const auto other = make(replica->parameters());
      torch::optim::StepLR scheduler(*optimizer, 2, 0.5);
      torch::optim::StepLR other_scheduler(*other, 2, 0.5);
      for (int number = 0; number < 4; ++number) {
        step(model, *optimizer, number);
        step(replica, *other, number);
        scheduler.step();
        other_scheduler.step();
        expect_same_model(model, replica);
      }
      expect_same_state(*optimizer, *other);
      EXPECT_TRUE(same_bits_everywhere(model.parameters()));
      EXPECT_TRUE(optimizer->param_groups()[0].params()[3].is_same(model->factors[3]));
    }
  }
}

TEST_F(LibTorchOneCopy, ContinuesFromAStateDict) {
  NEEDS_COPIES();
  for (std::size_t kind = 0; const MakeOptimizer& make : all_kinds()) {
    SCOPED_TRACE(kind++);
    Model model = model_of(true);
    Model replica = model_of(false);
    const auto optimizer = make(model->parameters());
    const auto other = make(replica->parameters());
    for (int number = 0; number < 2; ++number) {
      step(model, *optimizer, number);
      step(replica, *other, number);
    }
    const auto next = make(model->parameters());
    load_optimizer_state_dict(*next, optimizer_state_dict(*optimizer));
    for (int number = 2; number < 4; ++number) {
      step(model, *next, number);
      step(replica, *other, number);
      expect_same_model(model, replica);
    }
    expect_same_state(*next, *other);
  }
}

TEST_F(LibTorchOneCopy, OfStridesGroupsAndOrdinaryParameters) {
  NEEDS_COPIES();
  const auto build = [&](bool one_copy) {
    Factors module = module_of(kParameterSizes);
    module->factors[7].set_data(
        module->factors[7].view({100, 7, 10, 10}).contiguous(at::MemoryFormat::ChannelsLast));
    module->register_parameter("again", module->factors[3]);
    return Model(module.ptr(), {.one_copy_per_machine = one_copy});
  };
  const auto run = [&](Model& model) {
    const Tensors& all = model->factors;
    const at::Tensor own = at::ones({3}).requires_grad_();
    std::vector<torch::optim::OptimizerParamGroup> groups = {
        torch::optim::OptimizerParamGroup({all.begin(), all.begin() + 4}),
        torch::optim::OptimizerParamGroup(
            {all[4], all[5], all[6], all[7], all[8], own},
            std::make_unique<torch::optim::AdamWOptions>(torch::optim::AdamWOptions(0.5)))};
    auto optimizer = std::make_unique<torch::optim::AdamW>(groups, torch::optim::AdamWOptions(0.1));
    for (int number = 0; number < 3; ++number) {
      Tensors factors = factors_of(number);
      factors[7] = factors[7].view({100, 7, 10, 10});
      optimizer->zero_grad();
      model(factors).backward();
      own.mutable_grad() = at::full({3}, number + 1.0);
      step_optimizer(*optimizer);
    }
    EXPECT_TRUE(optimizer->param_groups()[1].params()[5].is_same(own));
    return std::pair{std::move(optimizer), own};
  };
  Model model = build(true);
  Model replica = build(false);
  const auto [optimizer, own] = run(model);
  const auto [other, expected] = run(replica);
  EXPECT_TRUE(same_bits(own, expected));
  expect_same_model(model, replica);
  expect_same_state(*optimizer, *other);
}

TEST_F(LibTorchOneCopy, ClipsAndUnscales) {
  NEEDS_COPIES();
  Model model = model_of(true);
  Model replica = model_of(false);
  const auto run = [&](Model& of) {
    torch::optim::Adam optimizer(of->parameters(), 0.1);
    GradScaler scaler({.init_scale = 1024});
    for (int number = 0; number < 4; ++number) {
      optimizer.zero_grad();
      scaler.scale(of(factors_of(number)) * (number == 1 ? 1e39 : 1)).backward();
      scaler.unscale_(optimizer);
      clip_grad_value_(of->parameters(), 0.3);
      EXPECT_EQ(scaler.step(optimizer), number != 1);
      scaler.update();
    }
  };
  run(model);
  run(replica);
  expect_same_model(model, replica);
}

TEST_F(LibTorchOneCopy, OrdinaryParametersMayHaveOtherStepsOnEachRank) {
  NEEDS_COPIES();
  const auto run = [&](Model& model, const MakeOptimizer& make) {
    Tensors parameters = model->parameters();
    const at::Tensor own = at::ones({3}).requires_grad_();
    parameters.push_back(own);
    const auto optimizer = make(parameters);
    for (int number = 0; number < 3; ++number) {
      optimizer->zero_grad();
      backward(model, number);
      if (number >= rank_) own.mutable_grad() = at::full({3}, number + 1.0);
      step_optimizer(*optimizer);
    }
    return own;
  };
  for (const MakeOptimizer& make : {maker<torch::optim::Adam>(torch::optim::AdamOptions(0.1)),
                                    maker<Adam>(AdamOptions{.lr = 0.1})}) {
    Model model = model_of(true);
    Model replica = model_of(false);
    EXPECT_TRUE(same_bits(run(model, make), run(replica, make)));
    expect_same_model(model, replica);
  }
}

TEST_F(LibTorchOneCopy, AStepCountsAsAChangeOfParameters) {
  NEEDS_COPIES();
  Model model = model_of(true);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  const at::Tensor& parameter = model->factors[3];
  const at::Tensor kept = (parameter * parameter).sum();
  step(model, optimizer, 1);
  EXPECT_SAYS(message_of<c10::Error>([&] { kept.backward(); }), "modified by an inplace operation");
}

TEST_F(LibTorchOneCopy, AnOptimizerWhoseStepIsRefusedKeepsItsParametersAndState) {
  NEEDS_COPIES();
  Model model = model_of(true);
  torch::optim::Adam first(model->parameters(), 0.1);
  torch::optim::Adam second(model->parameters(), 0.1);
  step(model, first, 1);
  step(model, second, 2);
  const std::size_t states = first.state().size();
  backward(model, 3);
  EXPECT_SAYS(message_of<UsageError>([&] { step_optimizer(first); }),
              "was taken over by another optimizer");
  EXPECT_EQ(first.state().size(), states);
  for (std::size_t i = 0; i < kParameterSizes.size(); ++i) {
    EXPECT_TRUE(first.param_groups()[0].params()[i].is_same(model->factors[i])) << i;
  }
  model.zero_grad();
  step(model, second, 4);
}

TEST_F(LibTorchOneCopy, RefusesOptimizersThatNeedWholeParameters) {
  NEEDS_COPIES();
  struct ByNorm : torch::optim::SGD {
    using SGD::SGD;
  };
  Model model = model_of(true);
  const Tensors before = model_of(false).parameters();
  backward(model, 1);
  torch::optim::LBFGS lbfgs(model->parameters());
  EXPECT_SAYS(message_of<UsageError>([&] { step_optimizer(lbfgs); }),
              "use SGD, Adam, AdamW, RMSprop or Adagrad of LibTorch");
  ShardedOptimizer<torch::optim::SGD> sharded(model->parameters(), 0.1);
  EXPECT_SAYS(message_of<UsageError>([&] { step_optimizer(sharded); }),
              "use SGD, Adam, AdamW, RMSprop or Adagrad of LibTorch");
  ByNorm by_norm(model->parameters(), 0.1);
  EXPECT_SAYS(message_of<UsageError>([&] { step_optimizer(by_norm); }), "whole parameters");
  expect_same_bits(model.parameters(), before);
  torch::optim::SGD sgd(model->parameters(), rank_ == 1 ? 0.1 : 0.2);
  EXPECT_SAYS(message_of<UsageError>([&] { step_optimizer(sgd); }),
              "on rank 1 are other than on rank 0");
  expect_same_bits(model.parameters(), before);
  model.zero_grad();
  AdamW optimizer(model->parameters(), {});
  train(model, optimizer, 2, 3);
}

}  // namespace
}  // namespace lockstep::testing
