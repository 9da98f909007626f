#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include "tests/ranks/fixture.h"

namespace lockstep::testing {

/// What the examples of docs/distributed-data-parallel.md take for granted.
struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(4, 6));
    norm = register_module("norm", torch::nn::BatchNorm1d(6));
    last = register_module("last", torch::nn::Linear(6, 1));
  }
  at::Tensor forward(const at::Tensor& x) { return last(at::tanh(norm(first(x)))); }
  torch::nn::Linear first{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear last{nullptr};
};
TORCH_MODULE(Net);

class Guide : public Conformance {
 protected:
  static at::Tensor loss_of(const at::Tensor& outputs) { return outputs.square().mean(); }

  void SetUp() override {
    inputs = at::sin(at::arange(32, at::kFloat) * (1 + rank_)).view({8, 4});
    targets = inputs.sum(1, true);
  }
  template <class Model>
  void expect_in_step(const Model& model) {
    for (const at::Tensor& parameter : model->parameters()) EXPECT_TRUE(parameter.grad().defined());
    Tensors state;
    for (const at::Tensor& parameter : model->parameters()) state.push_back(parameter.detach());
    EXPECT_TRUE(same_bits_everywhere(state));
  }

  const ProcessGroup& group = group_;
  at::Tensor inputs;
  at::Tensor targets;
  const double max_norm = 0.1;
};

}  // namespace lockstep::testing
