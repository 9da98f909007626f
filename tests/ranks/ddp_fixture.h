#pragma once

#include <numeric>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/utils.h>

#include "lockstep/ddp/distributed_data_parallel.h"
#include "tests/ranks/fixture.h"

namespace lockstep::testing {

/// What the tests of DistributedDataParallel share: a plain module with the same weights as oracle.
class DdpTest : public Conformance {
 protected:
  // Every rank builds from a seed of its own: only the exchange can make the replicas equal.
  void SetUp() override { torch::manual_seed(100 + rank_); }

  static void copy_state(const torch::nn::Module& source, torch::nn::Module& target) {
    const torch::NoGradGuard no_grad;
    auto parameters = target.parameters();
    auto buffers = target.buffers();
    for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].copy_(source.parameters()[i]);
    for (std::size_t i = 0; i < buffers.size(); ++i) buffers[i].copy_(source.buffers()[i]);
  }

  static void expect_close_gradients(const std::vector<at::Tensor>& actual,
                                     const std::vector<at::Tensor>& expected) {
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i) {
      ASSERT_EQ(actual[i].grad().defined(), expected[i].grad().defined()) << i;
      if (!actual[i].grad().defined()) continue;
      EXPECT_TRUE(at::allclose(actual[i].grad(), expected[i].grad(), 1e-4, 1e-6))
          << i << actual[i].grad() << expected[i].grad();
    }
  }

  /// Runs `ours` on the model, `theirs` on the plain module with the same state, and expects the
  /// model's gradients to be the averages over ranks of the plain module's, with the same bits on
  /// every rank, and undefined where no rank has one.
  template <class Model, class Plain, class Ours, class Theirs>
  void expect_average(Model& model, Ours&& ours, Plain& plain, Theirs&& theirs) {
    copy_state(*model, *plain);
    model->zero_grad();
    theirs();
    ours();
    Tensors gradients;
    for (at::Tensor& parameter : plain->parameters()) {
      const at::Tensor holders = at::full({1}, parameter.grad().defined() ? 1.0 : 0.0);
      group_.all_reduce(holders);
      if (holders.item<float>() == 0) continue;
      if (!parameter.grad().defined()) parameter.mutable_grad() = at::zeros_like(parameter);
      const at::Tensor gradient = parameter.grad().contiguous().clone();
      group_.all_reduce(gradient);
      parameter.mutable_grad() = gradient / world_size_;
    }
    expect_close_gradients(model->parameters(), plain->parameters());
    for (const at::Tensor& parameter : model->parameters()) {
      if (parameter.grad().defined()) gradients.push_back(parameter.grad().detach().contiguous());
    }
    EXPECT_TRUE(same_bits_everywhere(gradients));
  }

  /// The same action on both.
  template <class Model, class Plain, class Action>
  void expect_average_of(Model& model, Action&& action, Plain plain) {
    expect_average(
        model, [&] { action(model); }, plain, [&] { action(plain); });
  }

  std::vector<int> all_ranks() const {
    std::vector<int> ranks(static_cast<std::size_t>(world_size_));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }
};

}  // namespace lockstep::testing
