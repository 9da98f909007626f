// What tests of Accelerator train: rows of sines, by a small net.
#pragma once

#include <functional>
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

#include "lockstep/optim/exponential_moving_average.h"
#include "lockstep/train/accelerator.h"
#include "tests/ranks/fixture.h"
#include "tests/ranks/folder_of_ranks.h"

namespace lockstep::testing {

// Sample i is a row of formulas of i, its target another one.
struct SineRows : torch::data::datasets::Dataset<SineRows, torch::data::Example<>> {
  explicit SineRows(std::int64_t count)
      : inputs(
            (at::arange(count * 4, at::kDouble) * 0.37).sin().reshape({count, 4}).to(at::kFloat)),
        targets(inputs.mean(1, true)) {}
  torch::data::Example<> get(std::size_t index) override {
    const auto i = static_cast<std::int64_t>(index);
    return {inputs[i], targets[i]};
  }
  std::optional<std::size_t> size() const override {
    return static_cast<std::size_t>(inputs.size(0));
  }
  at::Tensor inputs;
  at::Tensor targets;
};

inline auto sine_rows(std::int64_t count) {
  return SineRows(count).map(torch::data::transforms::Stack<>());
}

inline torch::nn::Sequential make_tanh_net() {
  torch::nn::Sequential net(torch::nn::Linear(4, 5), torch::nn::Tanh(), torch::nn::Linear(5, 1));
  const at::NoGradGuard no_grad;
  double at = 0;
  for (at::Tensor& parameter : net->parameters()) {
    parameter.copy_((at::arange(parameter.numel()) * 0.7 + ++at).sin().view_as(parameter) * 0.5);
  }
  return net;
}

inline Tensors copies_of(const torch::nn::Sequential& net) {
  Tensors copies;
  for (const at::Tensor& parameter : net->parameters())
    copies.push_back(parameter.detach().clone());
  return copies;
}

class AcceleratorTest : public Conformance {
 protected:
  static double rate_of(torch::optim::SGD& optimizer) {
    return optimizer.param_groups().front().options().get_lr();
  }
};

/// With a folder that all ranks save to.
class AcceleratorState : public AcceleratorTest {
 protected:
  const FolderOfRanks folder_{group_, "accelerator-"};
  const std::string path_ = folder_.path();
};

// A training run whose parts are all that an accelerator saves.
struct AcceleratedTraining {
  explicit AcceleratedTraining(Accelerator& of) : accelerator(of) {
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
  torch::nn::Sequential net = make_tanh_net();
  torch::optim::Adam adam{net->parameters(), 0.02};
  torch::optim::StepLR step_lr{adam, 3, 0.7};
  PreparedModel<torch::nn::SequentialImpl> model = accelerator.prepare(net);
  PreparedOptimizer<torch::optim::Adam> optimizer = accelerator.prepare(adam);
  PreparedScheduler<torch::optim::StepLR> scheduler = accelerator.prepare(step_lr);
  DataLoader<decltype(sine_rows(1))> loader =
      accelerator.make_data_loader(sine_rows(41), {.batch_size = 2});
  ExponentialMovingAverage average{*net, {.decay = 0.5}};
  at::Tensor seen = at::zeros({}, at::kLong);
};

}  // namespace lockstep::testing
