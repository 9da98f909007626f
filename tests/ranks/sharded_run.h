#pragma once

// A training run in logical shards, and its oracle.
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/optim/adam.h>

#include "lockstep/data/epoch_plan.h"
#include "lockstep/recovery/internal/step_seed.h"
#include "tests/ranks/train/accelerator_fixture.h"
#include "tests/shard_oracle.h"

namespace lockstep::testing {

inline constexpr int kBitsOfBatches = 40;

using MakeNet = std::function<torch::nn::Sequential()>;

inline void fill(const torch::nn::Sequential& net) {
  const at::NoGradGuard no_grad;
  double at = 0;
  for (at::Tensor& parameter : net->parameters()) {
    parameter.copy_((at::arange(parameter.numel()) * 0.7 + ++at).sin().view_as(parameter) * 0.5);
  }
}

inline torch::nn::Sequential dropout_net() {
  torch::nn::Sequential net(torch::nn::Linear(4, 37), torch::nn::ReLU(), torch::nn::Dropout(0.3),
                            torch::nn::Linear(37, 1));
  fill(net);
  return net;
}

inline torch::nn::Sequential batch_norm_net() {
  torch::nn::Sequential net(torch::nn::Linear(4, 5), torch::nn::BatchNorm1d(5), torch::nn::ReLU(),
                            torch::nn::Dropout(0.3), torch::nn::Linear(5, 1));
  fill(net);
  return net;
}

struct ShardedRun {
  MakeNet net = dropout_net;
  int shards = 4;
  std::int64_t samples = 41;
  std::int64_t batch_size = 2;
  int epochs = 2;
  bool has_weights = false;
};

inline double weight_of(const at::Tensor& targets) {
  return std::abs(targets.sum().item<double>()) + 0.1;
}

struct Outcome {
  Tensors state;
  std::vector<double> losses;
};

inline Outcome outcome_of(const torch::nn::Sequential& net, std::vector<double> losses) {
  Outcome outcome{.state = copies_of(net), .losses = std::move(losses)};
  for (const at::Tensor& buffer : net->buffers()) outcome.state.push_back(buffer.clone());
  return outcome;
}

// One step of the oracle.
inline double step_of_one_process(const ShardedRun& run, const EpochPlan& plan, std::int64_t number,
                                  std::int64_t epoch, const EpochOrder& order,
                                  torch::nn::Sequential& net) {
  const SineRows rows(run.samples);
  return step_of_oracle(*net, run.shards, [&](int shard) {
    const SampleRange range = plan.share(number, shard);
    if (range.size == 0) return OracleShard();
    OracleShard result{.fraction_of_step = static_cast<double>(range.size) /
                                           static_cast<double>(plan.step(number).size)};
    std::vector<std::int64_t> chosen;
    for (const std::size_t one : order.samples(range)) {
      chosen.push_back(static_cast<std::int64_t>(one));
    }
    const at::Tensor indices = at::tensor(chosen);
    seed_step(/*seed=*/0, shard, (epoch << kBitsOfBatches) + number, at::kCPU);
    const at::Tensor targets = rows.targets.index_select(0, indices);
    const at::Tensor loss =
        at::mse_loss(net->forward(rows.inputs.index_select(0, indices)), targets);
    if (run.has_weights) result.weight = weight_of(targets);
    (loss * result.weight.value_or(result.fraction_of_step)).backward();
    result.loss = loss.item<double>();
    return result;
  });
}

inline torch::optim::Adam make_adam(const torch::nn::Sequential& net) {
  return torch::optim::Adam(net->parameters(), torch::optim::AdamOptions(0.01));
}

inline Outcome by_one_process(const ShardedRun& run) {
  torch::nn::Sequential net = run.net();
  auto adam = make_adam(net);
  std::vector<double> losses;
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  for (std::int64_t epoch = 0; epoch < run.epochs; ++epoch) {
    EpochOrder order(run.samples, /*shuffle=*/true);
    order.set_epoch(0, epoch);
    const EpochPlan plan({.dataset_size = run.samples, .batch_size = run.batch_size * run.shards},
                         {.epoch = epoch}, run.shards);
    for (std::int64_t number = 0; number < plan.steps(); ++number) {
      losses.push_back(step_of_one_process(run, plan, number, epoch, order, net));
      adam.step();
    }
  }
  at::set_num_threads(threads);
  return outcome_of(net, std::move(losses));
}

inline Outcome by_ranks(const ShardedRun& run, const AcceleratorOptions& options) {
  Accelerator accelerator(options);
  torch::nn::Sequential net = run.net();
  auto adam = make_adam(net);
  auto [model, optimizer] = accelerator.prepare(net, adam);
  auto loader =
      accelerator.make_data_loader(sine_rows(run.samples), {.batch_size = run.batch_size});
  std::vector<double> losses;
  for (int epoch = 0; epoch < run.epochs; ++epoch) {
    for (auto& batch : loader) {
      optimizer.zero_grad();
      const at::Tensor loss = at::mse_loss(model.forward(batch.data), batch.target);
      if (run.has_weights) {
        accelerator.backward(loss, weight_of(batch.target));
      } else {
        accelerator.backward(loss);
      }
      optimizer.step();
      if (accelerator.sync_gradients()) losses.push_back(accelerator.loss());
    }
  }
  return outcome_of(net, std::move(losses));
}

inline void expect_same_bits(const Outcome& actual, const Outcome& expected) {
  ASSERT_EQ(actual.state.size(), expected.state.size());
  for (std::size_t i = 0; i < actual.state.size(); ++i) {
    EXPECT_TRUE(at::equal(actual.state[i], expected.state[i]))
        << i << ": " << actual.state[i] << "\nand not\n"
        << expected.state[i];
  }
  EXPECT_EQ(actual.losses, expected.losses);
}

}  // namespace lockstep::testing
