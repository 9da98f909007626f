// Accelerator: the same training on any number of ranks, and what it gathers, saves and refuses.
#include "lockstep/train/accelerator.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <optional>
#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/data/datasets/base.h>
#include <torch/data/datasets/map.h>
#include <torch/data/transforms/stack.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>

#include "lockstep/comm/broadcast_text.h"
#include "lockstep/data/epoch_batches.h"
#include "lockstep/optim/exponential_moving_average.h"
#include "lockstep/os/temporary_directory.h"
#include "lockstep/snapshot/snapshot.h"
#include "tests/ranks/fixture.h"

namespace lockstep::testing {
namespace {

namespace data = torch::data;

// Sample i is a row of formulas of i, its target another one.
struct Rows : data::datasets::Dataset<Rows, data::Example<>> {
  explicit Rows(std::int64_t count)
      : inputs(
            (at::arange(count * 4, at::kDouble) * 0.37).sin().reshape({count, 4}).to(at::kFloat)),
        targets(inputs.mean(1, true)) {}
  data::Example<> get(std::size_t index) override {
    const auto i = static_cast<std::int64_t>(index);
    return {inputs[i], targets[i]};
  }
  std::optional<std::size_t> size() const override {
    return static_cast<std::size_t>(inputs.size(0));
  }
  at::Tensor inputs;
  at::Tensor targets;
};

auto rows(std::int64_t count) {
  return Rows(count).map(data::transforms::Stack<>());
}

torch::nn::Sequential make_net() {
  torch::nn::Sequential net(torch::nn::Linear(4, 5), torch::nn::Tanh(), torch::nn::Linear(5, 1));
  const at::NoGradGuard no_grad;
  double at = 0;
  for (at::Tensor& parameter : net->parameters()) {
    parameter.copy_((at::arange(parameter.numel()) * 0.7 + ++at).sin().view_as(parameter) * 0.5);
  }
  return net;
}

Tensors copies_of(const torch::nn::Sequential& net) {
  Tensors copies;
  for (const at::Tensor& parameter : net->parameters())
    copies.push_back(parameter.detach().clone());
  return copies;
}

struct Plan {
  std::int64_t samples = 29;
  std::int64_t batch_size = 3;
  int accumulated = 1;
  int epochs = 2;
};

class AcceleratorTest : public Conformance {
 protected:
  // What one process does with all samples of a step at once.
  Tensors by_one_process(const Plan& plan) const {
    torch::nn::Sequential net = make_net();
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    const Rows all(plan.samples);
    const std::int64_t batch = plan.batch_size * world_size_ * plan.accumulated;
    for (int epoch = 0; epoch < plan.epochs; ++epoch) {
      const EpochBatches batches({.dataset_size = plan.samples, .batch_size = batch},
                                 {.epoch = epoch}, {});
      for (std::int64_t i = 0; i < batches.size(); ++i) {
        std::vector<std::int64_t> indices;
        for (const std::size_t index : batches.share(i).indices) {
          indices.push_back(static_cast<std::int64_t>(index));
        }
        const at::Tensor chosen = at::tensor(indices);
        optimizer.zero_grad();
        at::mse_loss(net->forward(all.inputs.index_select(0, chosen)),
                     all.targets.index_select(0, chosen))
            .backward();
        optimizer.step();
      }
    }
    return copies_of(net);
  }

  Tensors accelerated(const Plan& plan) const {
    Accelerator accelerator({.gradient_accumulation_steps = plan.accumulated});
    torch::nn::Sequential net = make_net();
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer, loader] =
        accelerator.prepare(net, sgd, data::make_data_loader(rows(plan.samples), plan.batch_size));
    for (int epoch = 0; epoch < plan.epochs; ++epoch) {
      for (auto& batch : loader) {
        const auto accumulating = accelerator.accumulate();
        optimizer.zero_grad();
        accelerator.backward(at::mse_loss(model.forward(batch.data), batch.target));
        optimizer.step();
      }
    }
    return copies_of(net);
  }

  static void expect_close(const Tensors& actual, const Tensors& expected) {
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i) {
      EXPECT_TRUE(at::allclose(actual[i], expected[i], 1e-4, 1e-6)) << actual[i] << "\nand not\n"
                                                                    << expected[i];
    }
  }

  static double rate_of(torch::optim::SGD& optimizer) {
    return optimizer.param_groups().front().options().get_lr();
  }
};

TEST_F(AcceleratorTest, TrainsAsOneProcessDoesWithAllSamplesOfAStep) {
  for (const std::int64_t samples : {1, 2, 29, 36}) {
    for (const std::int64_t batch_size : {1, 3}) {
      for (const int accumulated : {1, 2, 3}) {
        SCOPED_TRACE(::testing::Message() << samples << " samples, " << batch_size << " a batch, "
                                          << accumulated << " accumulated");
        const Plan plan{.samples = samples, .batch_size = batch_size, .accumulated = accumulated};
        const Tensors parameters = accelerated(plan);
        expect_close(parameters, by_one_process(plan));
        EXPECT_TRUE(same_bits_everywhere(parameters));
      }
    }
  }
}

TEST_F(AcceleratorTest, ZeroGradMayStandBehindTheStep) {
  const Plan plan{.accumulated = 2};
  Accelerator accelerator({.gradient_accumulation_steps = 2});
  torch::nn::Sequential net = make_net();
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer, loader] =
      accelerator.prepare(net, sgd, data::make_data_loader(rows(plan.samples), plan.batch_size));
  for (int epoch = 0; epoch < plan.epochs; ++epoch) {
    for (auto& batch : loader) {
      const auto accumulating = accelerator.accumulate();
      accelerator.backward(at::mse_loss(model(batch.data), batch.target));
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  expect_close(copies_of(net), by_one_process(plan));
}

TEST_F(AcceleratorTest, SplitBatchesAreTheSameForAnyNumberOfRanks) {
  Accelerator accelerator({.split_batches = true});
  torch::nn::Sequential net = make_net();
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer, loader] =
      accelerator.prepare(net, sgd, data::make_data_loader(rows(29), 5));
  EXPECT_EQ(loader.size(), 6);
  for (auto& batch : loader) {
    optimizer.zero_grad();
    accelerator.backward(at::mse_loss(model(batch.data), batch.target));
    optimizer.step();
  }
  torch::nn::Sequential alone = make_net();
  torch::optim::SGD own(alone->parameters(), 0.1);
  DataLoader batches(rows(29), {.batch_size = 5, .group = group_.new_group({0})});
  if (rank_ == 0) {
    for (auto& batch : batches) {
      own.zero_grad();
      at::mse_loss(alone->forward(batch.data), batch.target).backward();
      own.step();
    }
    expect_close(copies_of(net), copies_of(alone));
  }
}

TEST_F(AcceleratorTest, GathersEachSampleOnceInTheOrderOfTheDataset) {
  for (const std::int64_t samples : {1, 7, 24, 29}) {
    Accelerator accelerator;
    const Rows all(samples);
    auto loader = accelerator.prepare(
        data::make_data_loader<data::samplers::SequentialSampler>(rows(samples), 3));
    Tensors parts;
    for (auto& batch : loader) parts.push_back(accelerator.gather_for_metrics(batch.target));
    EXPECT_TRUE(at::equal(at::cat(parts), all.targets)) << samples;
    for (auto& batch : loader) {
      const auto gather = [&, rows = batch.data.size(0)] {
        accelerator.gather_for_metrics(at::zeros(std::vector<std::int64_t>{rows + 1}));
      };
      EXPECT_SAYS(message_of<UsageError>(gather), "give a row for each sample");
      break;
    }
  }
}

TEST_F(AcceleratorTest, GathersAndReduces) {
  Accelerator accelerator;
  const at::Tensor ranks = at::arange(world_size_, at::kFloat);
  EXPECT_TRUE(at::equal(accelerator.gather(at::scalar_tensor(rank_, at::kFloat)), ranks));
  const at::Tensor own = at::full({2, 3}, rank_, at::kLong);
  EXPECT_TRUE(at::equal(accelerator.gather(own).select(1, 2),
                        at::arange(world_size_).repeat_interleave(2)));
  EXPECT_TRUE(at::equal(accelerator.reduce(own),
                        at::full({2, 3}, world_size_ * (world_size_ - 1) / 2, at::kLong)));
  EXPECT_TRUE(matches(accelerator.reduce(at::scalar_tensor(rank_, at::kFloat), "mean"),
                      at::scalar_tensor((world_size_ - 1) / 2.0, at::kFloat)));
  EXPECT_THROW(accelerator.reduce(own, "max"), UsageError);
  accelerator.wait_for_everyone();
  EXPECT_EQ(accelerator.num_processes(), world_size_);
  EXPECT_EQ(accelerator.is_main_process(), rank_ == 0);
}

TEST_F(AcceleratorTest, MixedPrecisionGivesFloatsAndLearns) {
  for (const char* precision : {"bf16", "fp16"}) {
    Accelerator accelerator({.mixed_precision = precision, .gradient_accumulation_steps = 2});
    torch::nn::Sequential net = make_net();
    torch::optim::Adam adam(net->parameters(), 0.02);
    torch::optim::StepLR step_lr(adam, 4, 0.9);
    auto [model, optimizer, scheduler, loader] =
        accelerator.prepare(net, adam, step_lr, data::make_data_loader(rows(32), 4));
    double first = 0;
    double last = 0;
    for (int epoch = 0; epoch < 40; ++epoch) {
      last = 0;
      for (auto& batch : loader) {
        const auto accumulating = accelerator.accumulate();
        optimizer.zero_grad();
        const at::Tensor output = model(batch.data);
        EXPECT_EQ(output.scalar_type(), at::kFloat);
        const at::Tensor loss = at::mse_loss(output, batch.target);
        last += loss.item<double>();
        accelerator.backward(loss);
        const double norm = accelerator.clip_grad_norm_(model.parameters(), 1.0);
        // Not finite in a step that overflows, which is skipped.
        EXPECT_TRUE(norm < 100 || !std::isfinite(norm)) << norm << ": the scale has been taken out";
        optimizer.step();
        scheduler.step();
      }
      if (epoch == 0) first = last;
    }
    EXPECT_LT(last, first / 2) << precision;
    EXPECT_TRUE(same_bits_everywhere(copies_of(net)));
  }
}

TEST_F(AcceleratorTest, Fp16GradientsAreClippedUnscaledWhateverParametersComeFirst) {
  double norms[2];
  for (const bool scaled : {false, true}) {
    Accelerator accelerator({.mixed_precision = scaled ? "fp16" : "no"});
    torch::nn::Sequential net = make_net();
    for (at::Tensor& parameter : net[0]->parameters()) parameter.requires_grad_(false);
    torch::optim::SGD sgd(net[2]->parameters(), 0.01);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    accelerator.backward(model(at::ones({2, 4})).mean() * 0.01);
    norms[scaled ? 1 : 0] = accelerator.clip_grad_norm_(model.parameters(), 1.0);
    optimizer.step();
  }
  EXPECT_NEAR(norms[1], norms[0], 0.01 * norms[0]);
}

TEST_F(AcceleratorTest, WithFp16TooALossThatIsNotFiniteIsNamed) {
  Accelerator accelerator({.mixed_precision = "fp16", .non_finite = NonFinite::kStop});
  torch::nn::Sequential net = make_net();
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const double factor = rank_ == world_size_ - 1 ? std::numeric_limits<double>::quiet_NaN() : 1.0;
  accelerator.backward(model(at::ones({2, 4})).sum() * factor);
  EXPECT_SAYS(message_of<Error>([&, &optimizer = optimizer] { optimizer.step(); }),
              "the loss is not finite on rank " + std::to_string(world_size_ - 1));
}

TEST_F(AcceleratorTest, WhatWouldTakeWrongGradientsIsRefused) {
  for (const AcceleratorOptions& options : {AcceleratorOptions{.mixed_precision = "fp16"},
                                            AcceleratorOptions{.gradient_accumulation_steps = 2},
                                            AcceleratorOptions{.non_finite = NonFinite::kSkip}}) {
    Accelerator accelerator(options);
    torch::nn::Sequential net = make_net();
    auto model = accelerator.prepare(net);
    const auto backward = [&] { accelerator.backward(model(at::ones({2, 4})).sum()); };
    EXPECT_SAYS(message_of<UsageError>(backward), "need an optimizer that is prepared");
  }
  Accelerator accelerator;
  const ProcessGroup alone = group_.new_group({0});
  NEEDS_RANKS(2);
  if (rank_ > 0) return;
  const auto prepare = [&] { accelerator.prepare(DataLoader(rows(9), {.group = alone})); };
  EXPECT_SAYS(message_of<UsageError>(prepare), "the data loader was made for 1 of ");
}

// All samples are alike: the gradients of a full batch are the largest.
struct AlikeRows : data::datasets::Dataset<AlikeRows, data::Example<>> {
  explicit AlikeRows(std::int64_t rows_of_all) : count(rows_of_all) {}
  data::Example<> get(std::size_t) override { return {at::ones({4}), at::full({1}, -8.0)}; }
  std::optional<std::size_t> size() const override { return static_cast<std::size_t>(count); }
  std::int64_t count;
};

TEST_F(AcceleratorTest, AnUnevenLastBatchOverflowsNoMoreThanAFullOneInFp16) {
  torch::nn::Linear net(4, 1);
  {
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : net->parameters()) parameter.zero_();
  }
  torch::optim::SGD sgd(net->parameters(), 0.0);
  Accelerator accelerator({.mixed_precision = "fp16"});
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  auto loader = accelerator.make_data_loader(
      AlikeRows((16 + 9) * world_size_ - 1).map(data::transforms::Stack<>()), {.batch_size = 16});
  bool full_one_fits = false;
  for (int epoch = 0; epoch < 8; ++epoch) {
    for (auto& batch : loader) {
      optimizer.zero_grad();
      accelerator.backward(at::mse_loss(model(batch.data).to(at::kFloat), batch.target));
      optimizer.step();
      if (batch.data.size(0) == 16) {
        full_one_fits = !optimizer.step_was_skipped();
      } else if (full_one_fits) {
        EXPECT_FALSE(optimizer.step_was_skipped()) << "epoch " << epoch;
      }
    }
  }
  EXPECT_TRUE(full_one_fits);
}

TEST_F(AcceleratorTest, TwoModelsOfOneRankEndTheirEpochs) {
  if (world_size_ > 1) GTEST_SKIP() << "shown with one rank";
  Accelerator accelerator;
  torch::nn::Sequential first = make_net();
  torch::nn::Sequential second = make_net();
  torch::optim::SGD sgd(first->parameters(), 0.1);
  auto [model, other, optimizer, loader] =
      accelerator.prepare(first, second, sgd, data::make_data_loader(rows(29), 3));
  for (auto& batch : loader) {
    optimizer.zero_grad();
    accelerator.backward(at::mse_loss(model(batch.data), other(batch.data)) +
                         at::mse_loss(model(batch.data), batch.target));
    optimizer.step();
  }
  EXPECT_EQ(accelerator.steps(), 10);
}

TEST_F(AcceleratorTest, AStepWhoseLossIsNotFiniteIsNamedAndSkippedOrEndsTheTraining) {
  for (const NonFinite non_finite : {NonFinite::kSkip, NonFinite::kStop, NonFinite::kReport}) {
    Accelerator accelerator({.non_finite = non_finite});
    torch::nn::Sequential net = make_net();
    torch::optim::SGD sgd(net->parameters(), 0.1);
    torch::optim::StepLR step_lr(sgd, 1, 0.5);
    auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, step_lr);
    const auto train = [&, &model = model, &optimizer = optimizer,
                        &scheduler = scheduler](double factor) {
      optimizer.zero_grad();
      const bool is_bad_here = rank_ == world_size_ - 1;
      accelerator.backward(model(at::ones({2, 4})).sum() * (is_bad_here ? factor : 1.0));
      optimizer.step();
      scheduler.step();
    };
    train(1);
    train(1);
    const double rate = rate_of(sgd);
    EXPECT_LT(rate, 0.1);
    const Tensors before = copies_of(net);
    const double bad = std::numeric_limits<double>::quiet_NaN();
    if (non_finite == NonFinite::kStop) {
      const std::string message = message_of<Error>([&] { train(bad); });
      EXPECT_SAYS(message, "step 3: the loss is not finite on rank " +
                               std::to_string(world_size_ - 1) + "; gradients");
      EXPECT_SAYS(message, "0.weight, 0.bias, 2.weight and 1 others");
      EXPECT_TRUE(at::equal(net->parameters()[0], before[0]));
    } else if (non_finite == NonFinite::kSkip) {
      train(bad);
      EXPECT_TRUE(optimizer.step_was_skipped());
      EXPECT_TRUE(at::equal(net->parameters()[0], before[0]));
      EXPECT_EQ(rate_of(sgd), rate) << "the scheduler follows";
      train(1);
      EXPECT_FALSE(optimizer.step_was_skipped());
      EXPECT_FALSE(at::equal(net->parameters()[0], before[0]));
    } else {
      train(bad);
      EXPECT_TRUE(at::isnan(net->parameters()[0]).any().item<bool>());
    }
  }
}

// A training whose parts are all that an accelerator saves.
struct Training {
  explicit Training(Accelerator& of) : accelerator(of) {
    accelerator.register_for_checkpointing("average", average);
    accelerator.register_for_checkpointing("seen", {{"samples", seen}});
  }

  // Up to `most` further steps.
  void train(
      int epochs, std::int64_t most, const std::function<void()>& after_step = [] {}) {
    while (loader.epoch() < epochs) {
      for (auto& batch : loader) {
        const auto accumulating = accelerator.accumulate();
        optimizer.zero_grad();
        accelerator.backward(at::mse_loss(model(batch.data), batch.target));
        optimizer.step();
        scheduler.step();
        seen += accelerator.gather_for_metrics(batch.data).size(0);
        if (!accelerator.sync_gradients()) continue;
        average.update();
        after_step();
        if (--most == 0) return;
      }
    }
  }

  Accelerator& accelerator;
  torch::nn::Sequential net = make_net();
  torch::optim::Adam adam{net->parameters(), 0.02};
  torch::optim::StepLR step_lr{adam, 3, 0.7};
  PreparedModel<torch::nn::SequentialImpl> model = accelerator.prepare(net);
  PreparedOptimizer<torch::optim::Adam> optimizer = accelerator.prepare(adam);
  PreparedScheduler<torch::optim::StepLR> scheduler = accelerator.prepare(step_lr);
  DataLoader<decltype(rows(1))> loader = accelerator.make_data_loader(rows(41), {.batch_size = 2});
  ExponentialMovingAverage average{*net, {.decay = 0.5}};
  at::Tensor seen = at::zeros({}, at::kLong);
};

TEST_F(AcceleratorTest, GoesOnFromASavedStateAsIfNothingHadBeen) {
  std::optional<TemporaryDirectory> directory;
  if (rank_ == 0) directory.emplace(std::filesystem::temp_directory_path(), "accelerator-");
  const std::string path = broadcast_text(group_, rank_ == 0 ? directory->path().string() : "", 0);
  const AcceleratorOptions options{
      .mixed_precision = "fp16", .gradient_accumulation_steps = 2, .seed = 5, .project_dir = path};
  for (const std::int64_t steps : {1, 2, 9}) {
    SCOPED_TRACE(steps);
    Accelerator whole(options);
    Training undisturbed(whole);
    EXPECT_FALSE(whole.load_state(path + "/none"));
    undisturbed.train(4, 1'000'000, [&] {
      if (whole.steps() != steps) return;
      whole.save_state();
      whole.wait_for_everyone();
    });

    Accelerator resumed(options);
    Training training(resumed);
    ASSERT_TRUE(resumed.load_state());
    EXPECT_EQ(resumed.steps(), steps);
    training.train(4, 1'000'000);
    for (std::size_t i = 0; i < training.net->parameters().size(); ++i) {
      EXPECT_TRUE(at::equal(training.net->parameters()[i], undisturbed.net->parameters()[i]));
    }
    EXPECT_TRUE(at::equal(training.average.state_dict().back().second,
                          undisturbed.average.state_dict().back().second));
    EXPECT_EQ(training.seen.item<std::int64_t>(), 4 * 41) << "each sample of each epoch once";
    EXPECT_EQ(training.adam.param_groups().front().options().get_lr(),
              undisturbed.adam.param_groups().front().options().get_lr());
    resumed.wait_for_everyone();
    if (rank_ == 0) std::filesystem::remove_all(path);
    resumed.wait_for_everyone();
  }
}

TEST_F(AcceleratorTest, SavesInTheBackgroundAndWaitsForIt) {
  std::optional<TemporaryDirectory> directory;
  if (rank_ == 0) directory.emplace(std::filesystem::temp_directory_path(), "accelerator-");
  const std::string path = broadcast_text(group_, rank_ == 0 ? directory->path().string() : "", 0);
  Accelerator accelerator({.project_dir = path, .asynchronous_saves = true});
  Training training(accelerator);
  training.train(1, 1);
  accelerator.save_state();
  const at::Tensor saved = training.net->parameters()[0].detach().clone();
  training.train(2, 2);
  accelerator.wait_for_saves();
  accelerator.wait_for_everyone();
  EXPECT_FALSE(at::equal(training.net->parameters()[0], saved));

  Accelerator resumed({.project_dir = path});
  Training other(resumed);
  ASSERT_TRUE(resumed.load_state());
  EXPECT_EQ(resumed.steps(), 1);
  EXPECT_TRUE(at::equal(other.net->parameters()[0], saved));
  resumed.wait_for_everyone();
  if (rank_ == 0) {
    std::filesystem::remove_all(path);
    std::ofstream(path) << "no directory";
  }
  accelerator.save_state();
  if (rank_ == 0) {
    EXPECT_SAYS(message_of<SystemError>([&] { accelerator.wait_for_saves(); }), path);
    std::filesystem::remove(path);
  }
  accelerator.wait_for_everyone();
}

TEST_F(AcceleratorTest, LoadsOnlyIntoWhatWasSaved) {
  std::optional<TemporaryDirectory> directory;
  if (rank_ == 0) directory.emplace(std::filesystem::temp_directory_path(), "accelerator-");
  const std::string path = broadcast_text(group_, rank_ == 0 ? directory->path().string() : "", 0);
  Accelerator accelerator({.gradient_accumulation_steps = 2, .project_dir = path});
  Training training(accelerator);
  training.train(1, 2);
  {
    const auto accumulating = accelerator.accumulate();
    accelerator.backward(training.model(at::ones({1, 4})).sum());
    EXPECT_SAYS(message_of<UsageError>([&] { accelerator.save_state(); }),
                "gradients are being accumulated");
  }
  {
    const auto accumulating = accelerator.accumulate();
    accelerator.backward(training.model(at::ones({1, 4})).sum());
    training.optimizer.step();
  }
  accelerator.save_state();
  accelerator.wait_for_everyone();

  Accelerator other({.project_dir = path});
  torch::nn::Sequential net = make_net();
  torch::optim::Adam adam(net->parameters(), 0.02);
  auto prepared = other.prepare(net, adam);
  EXPECT_SAYS(message_of<UsageError>([&] { other.load_state(); }), "prepare and register the same");
  auto loader = other.make_data_loader(rows(40), {.batch_size = 2});
  torch::optim::StepLR step_lr(adam, 3, 0.7);
  auto scheduler = other.prepare(step_lr);
  EXPECT_SAYS(message_of<UsageError>([&] { other.load_state(); }), "a dataset of 41 samples");
  EXPECT_SAYS(
      message_of<UsageError>([&] { accelerator.register_for_checkpointing("seen", TensorDict{}); }),
      "is registered already");
  other.wait_for_everyone();
}

// A model whose gradient is 1, whatever the batch.
struct Slope : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) { return slope * at::ones_like(input); }
  at::Tensor slope = register_parameter("slope", at::zeros({1}));
};

TEST_F(AcceleratorTest, AGroupOfBatchesThatTheLoopLeavesIsNoStep) {
  for (const bool zeroes_first : {true, false}) {
    SCOPED_TRACE(zeroes_first);
    std::optional<TemporaryDirectory> directory;
    if (rank_ == 0) directory.emplace(std::filesystem::temp_directory_path(), "accelerator-");
    const std::string path =
        broadcast_text(group_, rank_ == 0 ? directory->path().string() : "", 0);
    Accelerator accelerator({.gradient_accumulation_steps = 4, .project_dir = path});
    Slope net;
    torch::optim::SGD sgd(net.parameters(), 1.0);
    torch::optim::StepLR step_lr(sgd, 1, 0.5);
    auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, step_lr);
    auto loader = accelerator.make_data_loader(rows(12 * world_size_), {.batch_size = 2});
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
  auto loader = accelerator.make_data_loader(rows(6 * world_size_ + 1), {.batch_size = 2});
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

TEST_F(AcceleratorTest, ALoopThatWasLeftEarlyGoesOnAsALiveOne) {
  std::optional<TemporaryDirectory> directory;
  if (rank_ == 0) directory.emplace(std::filesystem::temp_directory_path(), "accelerator-");
  const std::string path = broadcast_text(group_, rank_ == 0 ? directory->path().string() : "", 0);
  const auto train = [&](bool is_resumed, int& epochs) {
    Accelerator accelerator({.project_dir = path + "/run", .data_log = path + "/data"});
    torch::nn::Sequential net = make_net();
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    auto loader = accelerator.make_data_loader(rows(41), {.batch_size = 2});
    auto validation = accelerator.make_data_loader(rows(13), {.batch_size = 2, .shuffle = false});
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
  std::ifstream log(path + "/data/samples.rank0.jsonl");
  const std::string text(std::istreambuf_iterator<char>(log), {});
  EXPECT_SAYS(text, "\"run\":1,\"event\":\"leave\",\"loader\":0,\"epoch\":1");
  EXPECT_SAYS(text, "\"run\":2,\"event\":\"go_to\",\"loader\":0,\"epoch\":2,\"consumed\":0");
  group_.barrier();
}

TEST_F(AcceleratorTest, WhatLoadStateRefusesChangesNothing) {
  std::optional<TemporaryDirectory> directory;
  if (rank_ == 0) directory.emplace(std::filesystem::temp_directory_path(), "accelerator-");
  const std::string path = broadcast_text(group_, rank_ == 0 ? directory->path().string() : "", 0);
  Accelerator saving({.project_dir = path});
  Training saved(saving);
  saved.train(1, 2);
  saving.save_state();
  saving.wait_for_everyone();

  struct Stubborn {
    TensorDict state_dict() const { return {{"a", at::ones({1})}}; }
    void load_state_dict(const TensorDict&) const {
      if (refuses) throw Error("no");
    }
    bool refuses = false;
  };
  const auto refused = [&](Accelerator& accelerator, Training& training) {
    const Tensors before = copies_of(training.net);
    const at::Tensor average = training.average.state_dict().back().second.clone();
    const at::Tensor seen = training.seen.clone();
    const DataCursor cursor = training.loader.cursor();
    const std::string message = message_of<Error>([&] { accelerator.load_state(); });
    for (std::size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(at::equal(training.net->parameters()[i], before[i])) << message;
    }
    EXPECT_TRUE(at::equal(training.average.state_dict().back().second, average)) << message;
    EXPECT_TRUE(at::equal(training.seen, seen)) << message;
    EXPECT_EQ(training.loader.cursor(), cursor) << message;
    accelerator.wait_for_everyone();
    return message;
  };
  {
    Accelerator other({.project_dir = path});
    Training training(other);
    Stubborn more;
    other.register_for_checkpointing("more", more);
    EXPECT_SAYS(refused(other, training), "nothing was saved under 'more'");
  }
  {
    Accelerator other({.project_dir = path});
    Training training(other);
    training.train(1, 3);
    EXPECT_SAYS(refused(other, training), "the scheduler has made 3 steps, more than the 2");
  }
  Stubborn stubborn;
  saving.register_for_checkpointing("more", stubborn);
  saved.train(2, 1);
  saving.save_state();
  saving.wait_for_everyone();
  {
    Accelerator other({.project_dir = path});
    Training training(other);
    EXPECT_SAYS(refused(other, training), "it holds the state of 'more', which is not registered");
    Stubborn refusing{.refuses = rank_ == world_size_ - 1};
    other.register_for_checkpointing("more", refusing);
    const std::string message = refused(other, training);
    EXPECT_SAYS(message, refusing.refuses ? "no" : "failed on rank");
    refusing.refuses = false;
    EXPECT_TRUE(other.load_state());
    EXPECT_EQ(other.steps(), 3);
  }
  {
    Accelerator other({.project_dir = path});
    Training training(other);
    EXPECT_SAYS(message_of<UsageError>([&] { other.save_state(); }),
                world_size_ == 1 || rank_ == 0 ? "of another run" : "another error");
    other.wait_for_everyone();
  }
}

TEST_F(AcceleratorTest, WhatOneRankCannotSaveIsAnErrorOnAll) {
  std::optional<TemporaryDirectory> directory;
  if (rank_ == 0) directory.emplace(std::filesystem::temp_directory_path(), "accelerator-");
  const std::string path = broadcast_text(group_, rank_ == 0 ? directory->path().string() : "", 0);
  struct Failing {
    TensorDict state_dict() const {
      if (fails) throw Error("no state");
      return {{"a", at::ones({1})}};
    }
    void load_state_dict(const TensorDict&) const {}
    bool fails = false;
  };
  Accelerator accelerator({.project_dir = path});
  Training training(accelerator);
  Failing failing{.fails = rank_ == world_size_ - 1};
  accelerator.register_for_checkpointing("failing", failing);
  training.train(1, 1);
  EXPECT_SAYS(message_of<Error>([&] { accelerator.save_state(); }),
              failing.fails ? "no state" : "failed on rank");
  failing.fails = false;
  accelerator.save_state();
  accelerator.wait_for_everyone();
  EXPECT_TRUE(accelerator.load_state());
  accelerator.wait_for_everyone();
}

TEST_F(AcceleratorTest, AResumedTrainingSavesInItsOtherFoldersToo) {
  std::optional<TemporaryDirectory> directory;
  if (rank_ == 0) directory.emplace(std::filesystem::temp_directory_path(), "accelerator-");
  const std::string path = broadcast_text(group_, rank_ == 0 ? directory->path().string() : "", 0);
  const std::string best = path + "/best";
  {
    Accelerator first({.project_dir = path});
    Training training(first);
    training.train(9, 1);
    first.save_state(best);
    training.train(9, 1);
    first.save_state();
    first.wait_for_everyone();
  }
  {
    Accelerator resumed({.project_dir = path});
    Training training(resumed);
    ASSERT_TRUE(resumed.load_state());
    training.train(9, 1);
    resumed.save_state(best);
    resumed.wait_for_everyone();
    EXPECT_TRUE(resumed.load_state(best));
    EXPECT_EQ(resumed.steps(), 3);
  }
  Accelerator other({.project_dir = path + "/other"});
  Training training(other);
  training.train(9, 1);
  EXPECT_SAYS(message_of<Error>([&] { other.save_state(best); }),
              rank_ == 0 ? "of another run" : "failed on rank 0");
  other.wait_for_everyone();
}

TEST_F(AcceleratorTest, ASnapshotThatDoesNotCountBatchesIsLoaded) {
  std::optional<TemporaryDirectory> directory;
  if (rank_ == 0) directory.emplace(std::filesystem::temp_directory_path(), "accelerator-");
  const std::string path = broadcast_text(group_, rank_ == 0 ? directory->path().string() : "", 0);
  Accelerator saving({.project_dir = path});
  Training saved(saving);
  DataCursor cursor;
  saved.train(1, 3, [&] {
    cursor = saved.loader.cursor();
    if (saving.steps() == 3) saving.save_state();
  });
  if (rank_ == 0) {
    const std::filesystem::path file = path + "/snapshot-e0000-s00000003.pt";
    const Snapshot snapshot = load_snapshot(file);
    for (const c10::IValue& one : snapshot.values.toGenericDict().at("data").toListRef()) {
      EXPECT_EQ(one.toGenericDict().erase("batches"), 1U);
    }
    save_snapshot(file, snapshot);
  }
  saving.wait_for_everyone();
  Accelerator loading({.project_dir = path});
  Training loaded(loading);
  ASSERT_TRUE(loading.load_state());
  EXPECT_EQ(loaded.loader.cursor().batches, 3);
  EXPECT_EQ(loaded.loader.cursor(), cursor);
  loading.wait_for_everyone();
}

TEST_F(AcceleratorTest, RegisteredTensorsAreNeitherBroadcastNorConverted) {
  std::optional<TemporaryDirectory> directory;
  if (rank_ == 0) directory.emplace(std::filesystem::temp_directory_path(), "accelerator-");
  const std::string path = broadcast_text(group_, rank_ == 0 ? directory->path().string() : "", 0);
  const auto with = [&](const at::Tensor& registered, const auto& action) {
    Accelerator accelerator({.project_dir = path});
    torch::nn::Sequential net = make_net();
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto prepared = accelerator.prepare(net, sgd);
    accelerator.register_for_checkpointing("mine", {{"tensor", registered}});
    action(accelerator);
    accelerator.wait_for_everyone();
  };
  with(at::full({2}, 3.0F), [](Accelerator& accelerator) { accelerator.save_state(); });
  for (const at::Tensor& other : {at::zeros({1}), at::zeros({2, 2}), at::zeros({2}, at::kDouble)}) {
    with(other, [](Accelerator& accelerator) {
      EXPECT_SAYS(message_of<UsageError>([&] { accelerator.load_state(); }),
                  "of 'mine' 'tensor' was saved as float [2], and is ");
    });
    EXPECT_EQ(other.sum().item<double>(), 0);
  }
  const at::Tensor same = at::zeros({2});
  with(same, [](Accelerator& accelerator) { EXPECT_TRUE(accelerator.load_state()); });
  EXPECT_EQ(same.sum().item<double>(), 6);
}

TEST_F(AcceleratorTest, RefusesOptionsThatCannotWork) {
  EXPECT_SAYS(message_of<UsageError>([] { Accelerator({.mixed_precision = "fp61"}); }),
              "choose 'no', 'fp16' or 'bf16'");
  EXPECT_THROW(Accelerator({.gradient_accumulation_steps = 0}), UsageError);
  Accelerator accelerator;
  const auto prepare = [&] {
    accelerator.prepare(data::make_data_loader(rows(9), data::DataLoaderOptions(2).workers(1)));
  };
  EXPECT_SAYS(message_of<UsageError>(prepare), "Accelerator::make_data_loader");
  EXPECT_SAYS(message_of<UsageError>([&] { accelerator.save_state("nowhere"); }),
              "prepare a model and an optimizer");
}

}  // namespace
}  // namespace lockstep::testing
