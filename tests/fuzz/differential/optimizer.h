#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "lockstep/optim/optimizers.h"
#include "tests/fuzz/differential/plan.h"

namespace lockstep::differential {

inline constexpr double kRate = 0.5;

template <class Make>
auto with_optimizer_of_lockstep(const Plan& plan, Make&& make) {
  switch (plan.optimizer) {
    case OptimizerPlan::kMomentum:
      return make.template operator()<SGD>(
          SGDOptions{.lr = kRate, .momentum = 0.5, .weight_decay = 0.25});
    case OptimizerPlan::kAdam:
      return make.template operator()<Adam>(AdamOptions{.lr = kRate});
    case OptimizerPlan::kAdamW:
      return make.template operator()<AdamW>(AdamWOptions{.lr = kRate});
    case OptimizerPlan::kRmsprop:
      return make.template operator()<RMSprop>(RMSpropOptions{.lr = kRate});
    case OptimizerPlan::kAdagrad:
      return make.template operator()<Adagrad>(AdagradOptions{.lr = kRate});
    case OptimizerPlan::kNAdam:
      return make.template operator()<NAdam>(NAdamOptions{.lr = kRate, .weight_decay = 0.25});
    case OptimizerPlan::kRAdam:
      return make.template operator()<RAdam>(
          RAdamOptions{.lr = kRate, .decoupled_weight_decay = true});
    case OptimizerPlan::kAdamax:
      return make.template operator()<Adamax>(AdamaxOptions{.lr = kRate});
    case OptimizerPlan::kAdadelta:
      return make.template operator()<Adadelta>(AdadeltaOptions{.lr = kRate});
    case OptimizerPlan::kCenteredRmsprop:
      return make.template operator()<RMSprop>(
          RMSpropOptions{.lr = kRate, .momentum = 0.5, .centered = true});
    case OptimizerPlan::kAmsgrad:
      return make.template operator()<Adam>(
          AdamOptions{.lr = kRate, .amsgrad = true, .maximize = true});
    case OptimizerPlan::kLion:
      return make.template operator()<Lion>(LionOptions{.lr = kRate});
    case OptimizerPlan::kLamb:
      return make.template operator()<LAMB>(LAMBOptions{.lr = kRate});
    case OptimizerPlan::kSgd:
      break;
  }
  return make.template operator()<SGD>(SGDOptions{.lr = kRate});
}

/// Calls make.template operator()<Optimizer>(options) for the plan's optimizer and its options.
template <class Make>
auto with_optimizer(const Plan& plan, Make&& make) {
  if (plan.is_of_lockstep) return with_optimizer_of_lockstep(plan, std::forward<Make>(make));
  switch (plan.optimizer) {
    case OptimizerPlan::kMomentum:
      return make.template operator()<torch::optim::SGD>(
          torch::optim::SGDOptions(kRate).momentum(0.5).weight_decay(0.25));
    case OptimizerPlan::kAdam:
      return make.template operator()<torch::optim::Adam>(torch::optim::AdamOptions(kRate));
    case OptimizerPlan::kAdamW:
      return make.template operator()<torch::optim::AdamW>(torch::optim::AdamWOptions(kRate));
    case OptimizerPlan::kRmsprop:
      return make.template operator()<torch::optim::RMSprop>(torch::optim::RMSpropOptions(kRate));
    case OptimizerPlan::kAdagrad:
      return make.template operator()<torch::optim::Adagrad>(torch::optim::AdagradOptions(kRate));
    default:
      break;
  }
  return make.template operator()<torch::optim::SGD>(torch::optim::SGDOptions(kRate));
}

}  // namespace lockstep::differential
