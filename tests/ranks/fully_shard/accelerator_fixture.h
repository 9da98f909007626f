#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>

#include "lockstep/optim/optimizers.h"
#include "lockstep/optim/schedulers.h"
#include "lockstep/train/accelerator.h"
#include "tests/ranks/train/accelerator_fixture.h"
#include "tests/ranks/train/trainer_fixture.h"

namespace lockstep::testing {

using MakeUnitsOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(const Tensors&)>;

inline MakeUnitsOptimizer units_adamw() {
  return [](const Tensors& parameters) {
    return std::make_unique<AdamW>(parameters, AdamWOptions{.lr = 0.02, .amsgrad = true});
  };
}
inline MakeUnitsOptimizer units_nadam() {
  return [](const Tensors& parameters) { return std::make_unique<NAdam>(parameters); };
}
inline MakeUnitsOptimizer units_libtorch_adam() {
  return [](const Tensors& parameters) {
    return std::make_unique<torch::optim::Adam>(parameters, 0.02);
  };
}
inline MakeUnitsOptimizer units_libtorch_sgd() {
  return [](const Tensors& parameters) {
    return std::make_unique<torch::optim::SGD>(parameters,
                                               torch::optim::SGDOptions(0.05).momentum(0.9));
  };
}

/// What one step does beside backward and update.
struct UnitsStepPlan {
  double clip_norm = 0;
  double clip_value = 0;
  std::int64_t bad_step = -1;       ///< The last rank's loss is no number.
  std::int64_t infinite_step = -1;  ///< The last rank has a gradient that overflows.
};

// A frozen parameter, one whose pieces are empty on most ranks, and uneven ones.
inline torch::nn::Sequential make_units_net() {
  torch::nn::Sequential net(torch::nn::Linear(4, 37), torch::nn::Tanh(), torch::nn::Linear(37, 23),
                            torch::nn::Tanh(), torch::nn::Linear(23, 1));
  const at::NoGradGuard no_grad;
  double at = 0;
  for (at::Tensor& parameter : net->parameters()) {
    parameter.copy_((at::arange(parameter.numel()) * 0.7 + ++at).sin().view_as(parameter) * 0.3);
  }
  net->parameters()[3].set_requires_grad(false);
  return net;
}

inline Tensors trained_of(const torch::nn::Sequential& net) {
  Tensors trained;
  for (const at::Tensor& parameter : net->parameters()) {
    if (parameter.requires_grad()) trained.push_back(parameter);
  }
  return trained;
}

struct UnitsTraining {
  UnitsTraining(Accelerator& of, const MakeUnitsOptimizer& make, UnitsStepPlan planned = {})
      : accelerator(of), plan(planned), adam(make(trained_of(net))) {
    accelerator.register_for_checkpointing("seen", {{"samples", seen}});
  }

  void train(
      std::int64_t epochs, const std::function<void()>& after_step = [] {}) {
    while (loader.epoch() < epochs) {
      for (auto& batch : loader) {
        const auto accumulating = accelerator.accumulate();
        optimizer.zero_grad();
        const at::Tensor output = model(batch.data);
        at::Tensor loss = at::mse_loss(output, batch.target);
        const bool is_last_rank = accelerator.process_index() + 1 == accelerator.num_processes();
        if (accelerator.steps() == plan.bad_step && is_last_rank) {
          loss = loss * std::numeric_limits<double>::quiet_NaN();
        }
        if (accelerator.steps() == plan.infinite_step && is_last_rank) {
          loss = loss + (output * 3e38).sum();  // Of two samples the bias has twice that.
        }
        accelerator.backward(loss);
        const Tensors parameters = net->parameters();
        if (plan.clip_norm > 0) accelerator.clip_grad_norm_(parameters, plan.clip_norm);
        if (plan.clip_value > 0) accelerator.clip_grad_value_(parameters, plan.clip_value);
        optimizer.step();
        scheduler.step();
        seen += accelerator.gather_for_metrics(batch.data).size(0);
        if (accelerator.sync_gradients()) after_step();
      }
      losses.push_back(evaluate());
    }
  }

  double evaluate() {
    return accelerator.evaluate([&] {
      const at::NoGradGuard no_grad;
      double sum = 0;
      model->eval();
      for (auto& batch : test) {
        const at::Tensor errors = (model(batch.data) - batch.target).square();
        sum += accelerator.gather_for_metrics(errors).sum().item<double>();
      }
      model->train();
      return sum;
    });
  }

  Accelerator& accelerator;
  UnitsStepPlan plan;
  torch::nn::Sequential net = make_units_net();
  std::unique_ptr<torch::optim::Optimizer> adam;
  OneCycleLR one_cycle{*adam, {.max_lr = {0.05}, .total_steps = 100, .cycle_momentum = false}};
  PreparedModel<torch::nn::SequentialImpl> model = accelerator.prepare(net);
  PreparedOptimizer<torch::optim::Optimizer> optimizer = accelerator.prepare(*adam);
  PreparedScheduler<OneCycleLR> scheduler = accelerator.prepare(one_cycle);
  DataLoader<decltype(sine_rows(1))> loader =
      accelerator.make_data_loader(sine_rows(41), {.batch_size = 2});
  DataLoader<decltype(sine_rows(1))> test =
      accelerator.make_data_loader(sine_rows(13), {.batch_size = 3, .shuffle = false});
  at::Tensor seen = at::zeros({}, at::kLong);
  std::vector<double> losses;
};

class FullyShardAccelerator : public AcceleratorTest {
 protected:
  static AcceleratorOptions with_strategy(AcceleratorOptions options, bool is_sharded) {
    options.strategy = is_sharded ? Strategy::kFullyShard : Strategy::kDdp;
    options.fully_shard.auto_wrap_policy = module_wrap_policy<torch::nn::LinearImpl>();
    return options;
  }

  /// As in FullyShardTest.
  bool sums_in_one_order() const { return group_.backend_name() != "gloo" || world_size_ <= 2; }

  void expect_equal(const at::Tensor& actual, const at::Tensor& expected,
                    const std::string& name) const {
    ASSERT_EQ(actual.sizes(), expected.sizes()) << name;
    ASSERT_EQ(actual.scalar_type(), expected.scalar_type()) << name;
    if (sums_in_one_order()) {
      EXPECT_TRUE(at::equal(actual, expected)) << name;
    } else {
      EXPECT_TRUE(at::allclose(actual, expected, 1e-3, 1e-5, true)) << name;
    }
  }

  void expect_same(UnitsTraining& training, UnitsTraining& expected) const {
    const TensorDict weights = training.accelerator.get_state_dict(*training.net);
    const bool is_sharded = training.accelerator.options().strategy == Strategy::kFullyShard;
    if (rank_ == 0 || !is_sharded) {
      const TensorDict others = state_dict(*expected.net);
      ASSERT_EQ(weights.size(), others.size());
      for (std::size_t i = 0; i < weights.size(); ++i) {
        EXPECT_EQ(weights[i].first, others[i].first);
        expect_equal(weights[i].second, others[i].second, weights[i].first);
      }
    } else {
      EXPECT_TRUE(weights.empty());
    }
    ASSERT_EQ(training.losses.size(), expected.losses.size());
    for (std::size_t i = 0; i < training.losses.size(); ++i) {
      expect_equal(at::scalar_tensor(training.losses[i]), at::scalar_tensor(expected.losses[i]),
                   "loss");
    }
    EXPECT_EQ(training.accelerator.steps(), expected.accelerator.steps());
    EXPECT_EQ(training.accelerator.scaler().get_scale(), expected.accelerator.scaler().get_scale());
  }

  void expect_bits_of_replicas(const AcceleratorOptions& options,
                               const UnitsStepPlan& plan = {}) const {
    for (const MakeUnitsOptimizer& make : {units_adamw(), units_libtorch_sgd()}) {
      Accelerator shards(with_strategy(options, true));
      UnitsTraining training(shards, make, plan);
      Accelerator other(with_strategy(options, false));
      UnitsTraining replicas(other, make, plan);
      training.train(2);
      replicas.train(2);
      expect_same(training, replicas);
    }
  }
};

}  // namespace lockstep::testing
