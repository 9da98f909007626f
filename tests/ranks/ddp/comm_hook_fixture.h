#pragma once

#include <algorithm>
#include <memory>
#include <utility>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/ddp/comm_hook.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "tests/ranks/ddp_fixture.h"
#include "tests/ranks/fixture.h"

namespace lockstep::testing {

struct HookedNetImpl : torch::nn::Module {
  HookedNetImpl() {
    first = register_module("first", torch::nn::Linear(20, 31));
    second = register_module("second", torch::nn::Linear(31, 23));
    unused = register_parameter("unused", at::ones({4}));
  }
  at::Tensor forward(const at::Tensor& x) { return second(at::tanh(first(x))); }
  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};
  at::Tensor unused;
};
TORCH_MODULE(HookedNet);

using HookedModel = DistributedDataParallel<HookedNetImpl>;

/// What the tests of hooks share: a model with a parameter that nobody uses, its steps, and how far
/// what a hook leaves is from the average.
class CommHookTest : public DdpTest {
 protected:
  at::Tensor inputs(int step) const {
    return at::sin(at::arange(6 * 20, at::kFloat) * (1 + rank_) + step).view({6, 20});
  }
  static at::Tensor loss_of(const at::Tensor& outputs) { return outputs.square().mean(); }

  HookedModel make(std::shared_ptr<CommHook> hook, double bucket_cap_mb = 1) const {
    return HookedModel(HookedNet(), {.bucket_cap_mb = bucket_cap_mb, .comm_hook = std::move(hook)});
  }

  // The gradients of one step after another, each from the same parameters.
  Tensors gradients_of(HookedModel& model, int steps) const {
    Tensors gradients;
    for (int step = 0; step < steps; ++step) {
      model->zero_grad();
      loss_of(model(inputs(step))).backward();
      for (const at::Tensor& parameter : model->parameters()) {
        if (parameter.grad().defined()) gradients.push_back(parameter.grad().clone());
      }
    }
    return gradients;
  }

  // How far the gradients are from the averages, of which the largest is about 1.
  double largest_error(HookedModel& model, int step) const {
    HookedNet plain;
    copy_state(*model, *plain);
    model->zero_grad();
    loss_of(model(inputs(step))).backward();
    loss_of(plain(inputs(step))).backward();
    double error = 0;
    for (std::size_t i = 0; i < plain->parameters().size(); ++i) {
      if (!plain->parameters()[i].grad().defined()) continue;
      const at::Tensor average = plain->parameters()[i].grad().contiguous().clone();
      group_.all_reduce(average, {.op = ReduceOp::kAvg});
      const at::Tensor difference = model->parameters()[i].grad() - average;
      error = std::max(error, (difference.abs().max() / average.abs().max()).item<double>());
    }
    EXPECT_TRUE(same_bits_everywhere(gradients_now(model)));
    return error;
  }

  static Tensors gradients_now(const HookedModel& model) {
    Tensors gradients;
    for (const at::Tensor& parameter : model->parameters()) {
      if (parameter.grad().defined()) gradients.push_back(parameter.grad().contiguous());
    }
    return gradients;
  }
};

}  // namespace lockstep::testing
