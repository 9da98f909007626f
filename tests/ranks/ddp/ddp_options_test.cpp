#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/ddp/distributed_data_parallel.h"
#include "tests/ranks/ddp_fixture.h"
#include "tests/ranks/fixture.h"

namespace lockstep::testing {
namespace {

// An embedding tied to the output, whose own weight nobody uses, and a layer between.
struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    words = register_module("words", torch::nn::Embedding(11, 6));
    hidden = register_module("hidden", torch::nn::Linear(6, 6));
    output = register_module("output", torch::nn::Linear(6, 11));
    output->register_parameter("tied", words->weight);
    register_buffer("count", at::zeros({2}));
  }
  at::Tensor forward(const at::Tensor& indices) {
    return at::matmul(at::tanh(hidden(words(indices))), words->weight.t()) + output->bias;
  }
  torch::nn::Embedding words{nullptr};
  torch::nn::Linear hidden{nullptr};
  torch::nn::Linear output{nullptr};
};
TORCH_MODULE(Tied);

class DdpOptions : public DdpTest {
 protected:
  at::Tensor indices(int step = 0) const {
    return at::remainder(at::arange(7, at::kLong) * (2 + rank_) + step, 11);
  }
  static at::Tensor loss_of(const at::Tensor& outputs) { return outputs.square().mean(); }
  static std::string refusal(const DistributedDataParallelOptions& options) {
    return message_of<UsageError>(
        [&] { const DistributedDataParallel<TiedImpl> model(Tied(), options); });
  }
};

TEST_F(DdpOptions, ParametersSharedBetweenModulesAreOne) {
  DistributedDataParallel model(Tied(), {});
  EXPECT_EQ(model.parameters().size(), model->parameters().size() - 1);
  for (int step = 0; step < 2; ++step) {
    expect_average_of(
        model, [&](auto& tied) { loss_of(tied(indices(step))).backward(); }, Tied());
  }
}

TEST_F(DdpOptions, BucketCapsChangeNothingButBuckets) {
  for (const std::vector<double>& caps : {std::vector<double>{1e-6, 2e-4, 1}, {25.0}}) {
    DistributedDataParallel model(Tied(), {.bucket_cap_mb_list = caps});
    for (int step = 0; step < 2; ++step) {
      expect_average_of(
          model, [&](auto& tied) { loss_of(tied(indices(step))).backward(); }, Tied());
    }
  }
  EXPECT_SAYS(refusal({.bucket_cap_mb_list = {1, -1}}), "bucket_cap_mb_list=-1");
  EXPECT_SAYS(refusal({.bucket_cap_mb = 1, .bucket_cap_mb_list = {1}}), "give one");
  for (const double mb : {0.0, 1e30, std::numeric_limits<double>::infinity(), std::nan("")}) {
    EXPECT_SAYS(refusal({.bucket_cap_mb = mb}), "above 0 and at most 1e+09");
    EXPECT_SAYS(refusal({.bucket_cap_mb_list = {1, mb}}), "bucket_cap_mb_list=");
  }
  DistributedDataParallel model(Tied(), {.bucket_cap_mb = 1e9});
  loss_of(model(indices())).backward();
}

TEST_F(DdpOptions, EachThatMustAgreeHasALine) {
  const std::string lines = describe(DistributedDataParallelOptions{
      .bucket_cap_mb = 0.5, .init_sync = false, .delay_all_reduce_named_params = {"a", "b"}});
  for (const char* line : {"option bucket_cap_mb=0.5\n", "option init_sync=false\n",
                           "option delay_all_reduce_named_params=[a,b]\n",
                           "option static_graph=false\n", "option comm_hook=none\n"}) {
    EXPECT_SAYS(lines, line);
  }
}

TEST_F(DdpOptions, WhatIsIgnoredStaysThisRanks) {
  Tied module;
  const at::Tensor own = module->hidden->bias.detach().clone();
  module->named_buffers()["count"].fill_(rank_);
  DistributedDataParallel model(module,
                                {.parameters_and_buffers_to_ignore = {"hidden.bias", "count"}});
  EXPECT_TRUE(at::equal(model->hidden->bias, own));
  Tied plain;
  copy_state(*model, *plain);
  loss_of(plain(indices())).backward();
  loss_of(model(indices())).backward();
  EXPECT_TRUE(at::equal(model->hidden->bias.grad(), plain->hidden->bias.grad()));
  EXPECT_TRUE(at::equal(model->named_buffers()["count"], at::full({2}, rank_)));
  EXPECT_TRUE(same_bits_everywhere({model->hidden->weight.grad().contiguous()}));
  EXPECT_EQ(model.parameters().size(), model->parameters().size() - 2);
  EXPECT_SAYS(refusal({.parameters_and_buffers_to_ignore = {"hidden.bais"}}), "'hidden.bais'");
}

TEST_F(DdpOptions, DelayedParametersFollowTheOneTheyAreHookedTo) {
  DistributedDataParallel model(Tied(),
                                {.bucket_cap_mb = 1e-6,
                                 .delay_all_reduce_named_params = {"output.bias", "hidden.weight"},
                                 .param_to_hook_all_reduce = "hidden.bias"});
  for (int step = 0; step < 3; ++step) {
    expect_average_of(
        model, [&](auto& tied) { loss_of(tied(indices(step))).backward(); }, Tied());
  }
  EXPECT_SAYS(refusal({.delay_all_reduce_named_params = {"output.bias"}}), "both or neither");
  EXPECT_SAYS(refusal({.delay_all_reduce_named_params = {"output.bias", "hidden.bias"},
                       .param_to_hook_all_reduce = "hidden.bias"}),
              "holds 'hidden.bias', which is param_to_hook_all_reduce");
  EXPECT_SAYS(refusal({.delay_all_reduce_named_params = {"output.bias"},
                       .param_to_hook_all_reduce = "hidden"}),
              "param_to_hook_all_reduce names 'hidden'");
}

TEST_F(DdpOptions, WithoutInitSyncReplicasStartAsTheyAre) {
  Tied module;
  const at::Tensor own = module->hidden->weight.detach().clone();
  const DistributedDataParallel model(module, {.init_sync = false});
  EXPECT_TRUE(at::equal(model->hidden->weight, own));
}

TEST_F(DdpOptions, ModelsThatDifferAreRefusedWithoutInitSyncToo) {
  NEEDS_RANKS(2);
  const std::int64_t outputs = rank_ == world_size_ - 1 ? 5 : 4;
  const std::string message = message_of<UsageError>([&] {
    const DistributedDataParallel model(torch::nn::Linear(6, outputs), {.init_sync = false});
  });
  EXPECT_SAYS(message, "parameter weight float [5, 6]");
}

TEST_F(DdpOptions, AFrozenParameterThatIsTrainedLaterIsRefusedByName) {
  torch::nn::Linear module(4, 3);
  module->weight.set_requires_grad(false);
  DistributedDataParallel model(module);
  model(at::ones({2, 4})).sum().backward();
  module->weight.set_requires_grad(true);
  EXPECT_SAYS(message_of<UsageError>([&] {
                model(at::ones({2, 4}));
              }),
              "parameter 'weight' was frozen when the module was wrapped");
}

TEST_F(DdpOptions, NoSyncThatIsNotEnabledExchanges) {
  DistributedDataParallel model(torch::nn::Linear(1, 1));
  for (const bool enabled : {true, false}) {
    const auto no_sync = model.no_sync(enabled);
    model->zero_grad();
    (model(at::ones({1, 1})) * rank_).sum().backward();
    const double expected = enabled ? rank_ : (world_size_ - 1) / 2.0;
    EXPECT_EQ(model->bias.grad().item<double>(), expected);
  }
}

TEST_F(DdpOptions, WithoutViewsGradientsKeepTheirMemory) {
  DistributedDataParallel model(Tied(), {.gradient_as_bucket_view = false});
  const at::Tensor& gradient = model->hidden->weight.grad();
  loss_of(model(indices())).backward();
  const at::Tensor first = gradient;
  const at::Tensor values = first.clone();
  model->zero_grad();
  loss_of(model(indices(3))).backward();
  EXPECT_TRUE(at::equal(first, values));
  const void* const address = gradient.data_ptr();
  expect_average_of(
      model, [&](auto& tied) { loss_of(tied(indices(5))).backward(); }, Tied());
  model->zero_grad(/*set_to_none=*/false);
  loss_of(model(indices(3))).backward();
  EXPECT_NE(address, nullptr);
  const void* const kept = gradient.data_ptr();
  model->zero_grad(/*set_to_none=*/false);
  loss_of(model(indices(4))).backward();
  EXPECT_EQ(gradient.data_ptr(), kept);
}

struct ComplexImpl : torch::nn::Module {
  ComplexImpl() {
    turn = register_parameter("turn", at::randn({3, 5}, at::kComplexDouble));
    scale = register_parameter("scale", at::randn({5}, at::kDouble));
  }
  at::Tensor forward(const at::Tensor& x) { return at::matmul(x, turn) * scale; }
  at::Tensor turn;
  at::Tensor scale;
};
TORCH_MODULE(Complex);

TEST_F(DdpOptions, ComplexParameters) {
  DistributedDataParallel model(Complex(), {.gradient_norm = true});
  Complex plain;
  copy_state(*model, *plain);
  const at::Tensor x = at::sin(at::arange(6, at::kDouble) * (rank_ + 1)).view({2, 3});
  for (int step = 0; step < 2; ++step) {
    model->zero_grad();
    plain->zero_grad();
    at::abs(model(x.to(at::kComplexDouble))).sum().backward();
    at::abs(plain(x.to(at::kComplexDouble))).sum().backward();
    const at::Tensor expected = at::view_as_real(plain->turn.grad()).contiguous().clone();
    group_.all_reduce(expected, {.op = ReduceOp::kAvg});
    EXPECT_TRUE(at::allclose(at::view_as_real(model->turn.grad()), expected));
    const double norm = std::sqrt(expected.square().sum().item<double>() +
                                  model->scale.grad().square().sum().item<double>());
    EXPECT_NEAR(model.gradient_norm(), norm, 1e-9 * norm);
  }
}

}  // namespace
}  // namespace lockstep::testing
