#include "lockstep/recovery/internal/training_state.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/optim/optimizers.h"

namespace lockstep {
namespace {

namespace nn = torch::nn;

struct Training {
  nn::Sequential net{nn::Linear(3, 4), nn::BatchNorm1d(4), nn::Linear(4, 1)};
  torch::optim::Adam optimizer{net->parameters(), torch::optim::AdamOptions(0.1)};
  torch::optim::StepLR scheduler{optimizer, 2, 0.5};
  at::Tensor seen = at::zeros({2});
  TrainingState state{{.model = net.ptr(),
                       .optimizer = &optimizer,
                       .scheduler = &scheduler,
                       .extra = {{"seen", seen}}}};

  void half_a_step() {
    seen.add_(1);
    optimizer.zero_grad();
    net->forward(at::rand({5, 3})).sum().backward();
  }
  void step() {
    half_a_step();
    optimizer.step();
    scheduler.step();
  }
  std::vector<at::Tensor> tensors() const {
    std::vector<at::Tensor> all = net->parameters();
    for (const at::Tensor& buffer : net->buffers()) all.push_back(buffer);
    all.push_back(seen);
    return all;
  }
  std::vector<at::Tensor> copies() const {
    std::vector<at::Tensor> all;
    for (const at::Tensor& tensor : tensors()) all.push_back(tensor.detach().clone());
    return all;
  }
};

void expect_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].equal(b[i])) << i;
}

// Running statistics are among what goes back, though LibTorch does not count their changes.
TEST(TrainingState, GoesBackToBeforeAStepThatWasGivenUp) {
  Training training;
  for (int round = 0; round < 3; ++round) {
    training.state.remember();
    const auto before = training.copies();
    training.half_a_step();
    EXPECT_FALSE(training.net->buffers()[0].equal(before[6]));
    EXPECT_TRUE(training.state.roll_back());
    expect_equal(training.tensors(), before);
    const at::Tensor gradient = training.net->parameters()[0].grad();
    EXPECT_EQ(gradient.defined(), round > 0) << "as it was between steps";
    if (gradient.defined()) {
      EXPECT_TRUE(gradient.equal(at::zeros_like(gradient)));
    }
    training.step();
  }
}

TEST(TrainingState, SaysThatParametersHaveBeenChanged) {
  Training training;
  training.state.remember();
  training.step();
  EXPECT_FALSE(training.state.roll_back());
}

// LibTorch counts the changes of some optimizers only.
TEST(TrainingState, SaysSoWithAnyOptimizer) {
  const auto expect_noticed = [](auto&& optimizer, const std::vector<at::Tensor>& parameters,
                                 Training& training, const char* name) {
    TrainingState state({.model = training.net.ptr(), .optimizer = &optimizer});
    for (int round = 0; round < 2; ++round) {
      state.remember();
      training.half_a_step();
      EXPECT_TRUE(state.roll_back()) << name;
      training.half_a_step();
      parameters[0].mutable_grad().add_(1);
      optimizer.step();
      EXPECT_FALSE(state.roll_back()) << name;
      state.remember();
      training.half_a_step();
      {
        const at::NoGradGuard no_grad;
        parameters[0].clamp_(-0.01, 0.01);
      }
      EXPECT_FALSE(state.roll_back()) << name;
    }
  };
  Training training;
  const std::vector<at::Tensor> all = training.net->parameters();
  expect_noticed(torch::optim::SGD(all, 0.1), all, training, "SGD");
  expect_noticed(torch::optim::SGD(all, torch::optim::SGDOptions(0.1).momentum(0.9)), all, training,
                 "SGD with momentum");
  // Which has no moments of the others, and not of all of its groups.
  torch::optim::SGD mixed({torch::optim::OptimizerParamGroup(
                              {all.back()}, std::make_unique<torch::optim::SGDOptions>(
                                                torch::optim::SGDOptions(0.1).momentum(0.9)))},
                          torch::optim::SGDOptions(0.1));
  mixed.add_param_group(torch::optim::OptimizerParamGroup({all[0]}));
  expect_noticed(mixed, all, training, "SGD with momentum of one group");
  expect_noticed(torch::optim::Adam(all), all, training, "Adam");
  expect_noticed(torch::optim::AdamW(all), all, training, "AdamW");
  expect_noticed(torch::optim::Adagrad(all), all, training, "Adagrad");
  expect_noticed(torch::optim::RMSprop(all), all, training, "RMSprop");
  expect_noticed(SGD(all, 0.1), all, training, "Lockstep's SGD");
  expect_noticed(AdamW(all), all, training, "Lockstep's AdamW");
  expect_noticed(Lion(all), all, training, "Lion");
  expect_noticed(LAMB(all), all, training, "LAMB");
}

TEST(TrainingState, IsTakenByANewcomer) {
  Training old;
  for (int step = 0; step < 5; ++step) old.step();
  Training newcomer;
  newcomer.state.take(old.state.value(), 5);
  expect_equal(newcomer.tensors(), old.tensors());
  const auto lr = [](const Training& training) {
    return training.optimizer.param_groups()[0].options().get_lr();
  };
  EXPECT_EQ(lr(newcomer), lr(old));
  // With the optimizer's moments and the scheduler's count.
  for (Training* const training : {&old, &newcomer}) {
    training->net->eval();
    for (int step = 0; step < 3; ++step) {
      training->optimizer.zero_grad();
      training->net->forward(at::ones({2, 3})).sum().backward();
      training->optimizer.step();
      training->scheduler.step();
    }
  }
  expect_equal(newcomer.tensors(), old.tensors());
  EXPECT_EQ(lr(newcomer), lr(old));
}

// What a step that is rolled back relies on, whichever LibTorch this is.
TEST(TrainingState, OptimizersPassOverUndefinedGradients) {
  const auto expect_nothing_done = [](auto&& optimizer, Training& training, const char* name) {
    training.half_a_step();
    optimizer.step();
    optimizer.zero_grad();
    TrainingState state({.model = training.net.ptr(), .optimizer = &optimizer});
    state.remember();
    std::vector<at::Tensor> before = training.copies();
    std::vector<std::uint32_t> versions;
    for (const at::Tensor& tensor : training.tensors()) versions.push_back(tensor._version());
    optimizer.step();
    expect_equal(training.tensors(), before);
    for (std::size_t i = 0; i < versions.size(); ++i) {
      EXPECT_EQ(training.tensors()[i]._version(), versions[i]) << name;
    }
    EXPECT_TRUE(state.roll_back()) << name;  // By what the optimizer counts.
  };
  Training training;
  const std::vector<at::Tensor> all = training.net->parameters();
  using torch::optim::SGDOptions;
  expect_nothing_done(torch::optim::SGD(all, 0.1), training, "SGD");
  expect_nothing_done(torch::optim::SGD(all, SGDOptions(0.1).momentum(0.9).weight_decay(0.1)),
                      training, "SGD with momentum");
  expect_nothing_done(torch::optim::Adam(all), training, "Adam");
  expect_nothing_done(torch::optim::AdamW(all), training, "AdamW");
  expect_nothing_done(torch::optim::Adagrad(all), training, "Adagrad");
  expect_nothing_done(torch::optim::RMSprop(all), training, "RMSprop");
}

// A layer that only every other step reaches, whose gradient is not undefined but zeros between
// steps: the optimizer moves it by its moments in the others.
struct AlternatingTraining {
  nn::Linear always{3, 3};
  nn::Linear sometimes{3, 3};
  nn::Embedding sparse{nn::EmbeddingOptions(4, 3).sparse(true)};
  nn::Sequential net{always, sometimes, sparse};
  torch::optim::Adam adam;
  torch::optim::SGD sgd;  // Of sparse gradients, which Adam does not take.
  TrainingState state{{.model = net.ptr(), .optimizer = &adam}};
  bool zeroes_before = true;

  AlternatingTraining()
      : adam(parameters_of({always, sometimes}), torch::optim::AdamOptions(0.1)),
        sgd(sparse->parameters(), torch::optim::SGDOptions(0.1)) {
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : net->parameters()) {
      parameter.copy_(at::arange(parameter.numel()).reshape(parameter.sizes()) * 0.1);
    }
  }
  static std::vector<at::Tensor> parameters_of(const std::vector<nn::Linear>& layers) {
    std::vector<at::Tensor> all;
    for (const nn::Linear& layer : layers) {
      for (const at::Tensor& parameter : layer->parameters()) all.push_back(parameter);
    }
    return all;
  }

  void zero_grad() {
    for (at::Tensor& parameter : net->parameters()) {
      at::Tensor& gradient = parameter.mutable_grad();
      if (gradient.defined()) gradient.detach_().zero_();
    }
  }
  void half_a_step(int number) {
    if (zeroes_before) zero_grad();
    at::Tensor output = always->forward(at::ones({2, 3}));
    if (number % 2 == 0) output = sometimes->forward(output);
    if (number % 3 == 0) output = output + sparse->forward(at::full({2}, number % 4, at::kLong));
    output.square().sum().backward();
  }
  void step(int number) {
    half_a_step(number);
    adam.step();
    sgd.step();
    if (!zeroes_before) zero_grad();
  }
};

// As one copy per machine leaves it where a step was skipped: it has no elements that count.
TEST(TrainingState, TakesAGradientOnTheDeviceMetaForNone) {
  const at::Tensor parameter = at::ones({2, 3}).requires_grad_();
  parameter.mutable_grad() = at::empty({2, 3}, at::kMeta);
  EXPECT_EQ(gradient_kind(parameter), kNoGradient);
  parameter.mutable_grad() = at::zeros({2, 3});
  EXPECT_EQ(gradient_kind(parameter), 0);
}

TEST(TrainingState, KeepsGradientsThatAreZerosBetweenSteps) {
  for (const bool zeroes_before : {false, true}) {
    AlternatingTraining undisturbed;
    AlternatingTraining disturbed;
    for (AlternatingTraining* one : {&undisturbed, &disturbed}) {
      one->zeroes_before = zeroes_before;
      one->step(0);
      one->step(1);
    }
    AlternatingTraining newcomer;
    newcomer.zeroes_before = zeroes_before;
    for (int number = 2; number < 6; ++number) {
      disturbed.state.remember();
      disturbed.half_a_step(0);  // Which reaches all.
      ASSERT_TRUE(disturbed.state.roll_back());
      newcomer.state.take(disturbed.state.value(), 1);
      for (AlternatingTraining* one : {&undisturbed, &disturbed, &newcomer}) one->step(number);
      expect_equal(disturbed.net->parameters(), undisturbed.net->parameters());
      expect_equal(newcomer.net->parameters(), undisturbed.net->parameters());
    }
  }
}

TEST(TrainingState, LeavesGradientsUndefinedThatWere) {
  Training training;
  training.state.remember();
  training.half_a_step();
  ASSERT_TRUE(training.state.roll_back());
  Training newcomer;
  newcomer.half_a_step();
  newcomer.state.take(training.state.value(), 0);
  for (const Training* one : {&training, &newcomer}) {
    for (const at::Tensor& parameter : one->net->parameters()) {
      EXPECT_FALSE(parameter.grad().defined());
    }
  }
}

// As from a copy that is older than what a rank had done when its state was spoiled.
TEST(TrainingState, GoesBackWithItsScheduler) {
  Training ahead;
  Training behind;
  for (int step = 0; step < 2; ++step) ahead.step();
  ahead.step();
  for (int step = 0; step < 2; ++step) behind.step();
  ahead.state.take(behind.state.value(), -1);
  for (int step = 0; step < 3; ++step) {
    for (Training* const training : {&ahead, &behind}) training->scheduler.step();
    EXPECT_EQ(ahead.optimizer.param_groups()[0].options().get_lr(),
              behind.optimizer.param_groups()[0].options().get_lr())
        << step;
  }
}

TEST(TrainingState, RefusesWhatCannotBe) {
  EXPECT_THROW(TrainingState({}), UsageError);
  Training training;
  TrainingState renamed({.model = training.net.ptr(),
                         .optimizer = &training.optimizer,
                         .extra = {{"unseen", training.seen}}});
  EXPECT_THROW(renamed.take(training.state.value(), 0), UsageError);
  // Neither broadcast nor converted, and refused before anything is changed.
  for (const at::Tensor& extra : {at::zeros({1}), at::zeros({2}, at::kDouble), at::zeros({2, 1})}) {
    Training from;
    from.step();
    Training into;
    TrainingState reshaped(
        {.model = into.net.ptr(), .optimizer = &into.optimizer, .extra = {{"seen", extra}}});
    const std::vector<at::Tensor> before = into.copies();
    EXPECT_THROW(reshaped.take(from.state.value(), 0), UsageError);
    EXPECT_THROW(reshaped.check_extra({{"seen", from.seen}}), UsageError);
    expect_equal(into.tensors(), before);
  }
  nn::Linear other(3, 4);
  TrainingState state({.model = other.ptr()});
  EXPECT_THROW(state.take(training.state.value(), 0), UsageError);
}

TEST(TrainingState, TwoTensorsOfOneNameAreRefused) {
  Training training;
  EXPECT_THROW(TrainingState({.model = training.net.ptr(),
                              .optimizer = &training.optimizer,
                              .extra = {{"seen", training.seen}, {"seen", at::zeros({1})}}}),
               UsageError);
}

}  // namespace
}  // namespace lockstep
