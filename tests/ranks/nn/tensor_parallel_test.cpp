#include "lockstep/nn/tensor_parallel.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/nn/internal/group_functions.h"
#include "lockstep/optim/clip_grad.h"
#include "models/gpt.h"
#include "tests/ranks/fixture.h"

namespace lockstep {
namespace {

using lockstep::testing::message_of;

class TensorParallel : public ::testing::Test {
 protected:
  // All ranks draw the same.
  void SetUp() override { torch::manual_seed(7); }

  // This rank's part of what the uncut layer has.
  at::Tensor part(const at::Tensor& uncut, std::int64_t dimension) const {
    const Cut cut = cut_of(uncut.size(dimension), group_.rank(), group_.world_size());
    return uncut.narrow(dimension, cut.begin, cut.size);
  }

  static void expect_near(const at::Tensor& actual, const at::Tensor& expected) {
    ASSERT_EQ(actual.sizes(), expected.sizes());
    EXPECT_TRUE(torch::allclose(actual, expected, 1e-9, 1e-11)) << actual << expected;
  }

  static torch::nn::Linear linear(std::int64_t inputs, std::int64_t outputs) {
    torch::nn::Linear layer(inputs, outputs);
    layer->to(at::kDouble);
    return layer;
  }

  ProcessGroup group_ = default_process_group();
};

TEST_F(TensorParallel, CutsCoverEverythingOnce) {
  for (const std::int64_t size : {0, 1, 2, 7, 12}) {
    std::int64_t next = 0;
    for (int rank = 0; rank < group_.world_size(); ++rank) {
      const Cut cut = cut_of(size, rank, group_.world_size());
      EXPECT_EQ(cut.begin, next);
      EXPECT_LE(cut_of(size, 0, group_.world_size()).size - cut.size, 1);
      next += cut.size;
    }
    EXPECT_EQ(next, size);
  }
}

TEST_F(TensorParallel, APairOfLinearsGivesWhatTheUncutGive) {
  // Of the hidden sizes one does not divide, and one leaves ranks without any.
  for (const std::int64_t hidden : {12, 11, 1}) {
    auto wide = linear(5, hidden);
    auto narrow = linear(hidden, 3);
    ColumnParallelLinear cut_wide(wide);
    RowParallelLinear cut_narrow(narrow);
    auto inputs = torch::randn({2, 4, 5}, at::kDouble).requires_grad_();
    const auto weights = torch::randn({2, 4, 3}, at::kDouble);
    const auto expected = narrow(torch::gelu(wide(inputs)));
    (expected * weights).sum().backward();
    const auto expected_gradient = inputs.grad().clone();
    inputs.mutable_grad().reset();

    const auto actual = cut_narrow(torch::gelu(cut_wide(inputs)));
    (actual * weights).sum().backward();
    expect_near(actual, expected);
    expect_near(inputs.grad(), expected_gradient);
    expect_near(cut_wide->weight.grad(), part(wide->weight.grad(), 0));
    expect_near(cut_wide->bias.grad(), part(wide->bias.grad(), 0));
    expect_near(cut_narrow->weight.grad(), part(narrow->weight.grad(), 1));
    expect_near(cut_narrow->bias.grad(), narrow->bias.grad());
  }
}

TEST_F(TensorParallel, WholeInputsAndOutputs) {
  auto first = linear(7, 5);
  auto second = torch::nn::Linear(torch::nn::LinearOptions(5, 2).bias(false));
  second->to(at::kDouble);
  ColumnParallelLinear cut_first(first, ColumnParallelLinearOptions{.gather_output = true});
  RowParallelLinear cut_second(second, RowParallelLinearOptions{.input_is_parallel = false});
  auto inputs = torch::randn({3, 7}, at::kDouble).requires_grad_();
  const auto expected = second(torch::softmax(first(inputs), -1));
  expected.square().sum().backward();
  const auto expected_gradient = inputs.grad().clone();
  inputs.mutable_grad().reset();

  const auto actual = cut_second(torch::softmax(cut_first(inputs), -1));
  actual.square().sum().backward();
  expect_near(actual, expected);
  expect_near(inputs.grad(), expected_gradient);
  expect_near(cut_first->weight.grad(), part(first->weight.grad(), 0));
  expect_near(cut_second->weight.grad(), part(second->weight.grad(), 1));
  EXPECT_FALSE(cut_second->bias.defined());
}

// The norm of the gradient as a part of the loss; its gradients go through every exchange twice.
TEST_F(TensorParallel, AGradientPenaltyHasTheGradientsOfTheUncut) {
  for (const std::int64_t hidden : {12, 11, 1}) {
    auto wide = linear(5, hidden), narrow = linear(hidden, 5), head = linear(5, 7),
         last = linear(7, 2);
    ColumnParallelLinear cut_wide(wide);
    RowParallelLinear cut_narrow(narrow);
    ColumnParallelLinear cut_head(head, ColumnParallelLinearOptions{.gather_output = true});
    RowParallelLinear cut_last(last, RowParallelLinearOptions{.input_is_parallel = false});
    const auto inputs = torch::randn({3, 5}, at::kDouble).requires_grad_();
    const auto gradients_of = [&](auto& first, auto& second, auto& third, auto& fourth) {
      const at::Tensor between = inputs + second(torch::tanh(first(inputs)));
      const at::Tensor outputs = fourth(torch::softmax(third(between), -1)).exp();
      const at::Tensor gradient =
          torch::autograd::grad({outputs.sum()}, {inputs}, {}, true, true)[0];
      const at::Tensor loss = outputs.square().mean() + (gradient.norm() - 1).square();
      return torch::autograd::grad({loss}, {inputs, first->weight, first->bias, second->weight,
                                            third->weight, fourth->weight});
    };
    const auto expected = gradients_of(wide, narrow, head, last);
    const auto actual = gradients_of(cut_wide, cut_narrow, cut_head, cut_last);
    expect_near(actual[0], expected[0]);
    expect_near(actual[1], part(expected[1], 0));
    expect_near(actual[2], part(expected[2], 0));
    expect_near(actual[3], part(expected[3], 1));
    expect_near(actual[4], part(expected[4], 0));
    expect_near(actual[5], part(expected[5], 1));
  }
}

TEST_F(TensorParallel, AThirdDerivativeIsTheUncuts) {
  auto wide = linear(4, 6), narrow = linear(6, 4);
  ColumnParallelLinear cut_wide(wide);
  RowParallelLinear cut_narrow(narrow);
  const auto inputs = torch::randn({2, 4}, at::kDouble).requires_grad_();
  const auto third_of = [&](auto& first, auto& second, const at::Tensor& weight) {
    at::Tensor value = second(torch::tanh(first(inputs))).square().sum();
    for (int order = 0; order < 2; ++order) {
      value = torch::autograd::grad({value}, {inputs}, {}, true, true)[0].square().sum();
    }
    return torch::autograd::grad({value}, {weight})[0];
  };
  expect_near(third_of(cut_wide, cut_narrow, cut_wide->weight),
              part(third_of(wide, narrow, wide->weight), 0));
}

TEST_F(TensorParallel, AnEmbeddingByRows) {
  for (const std::int64_t rows : {10, 2, 1}) {
    torch::nn::Embedding uncut(rows, 3);
    uncut->to(at::kDouble);
    VocabParallelEmbedding cut(uncut);
    const auto indices = torch::randint(rows, {4, 5}, at::kLong);
    const auto weights = torch::randn({4, 5, 3}, at::kDouble);
    const auto expected = uncut(indices);
    (expected * weights).sum().backward();
    const auto actual = cut(indices);
    (actual * weights).sum().backward();
    expect_near(actual, expected);
    const auto own = part(uncut->weight.grad(), 0);
    if (own.numel() > 0) expect_near(cut->weight.grad(), own);
    EXPECT_EQ(cut(torch::empty({0}, at::kLong)).sizes(), (std::vector<std::int64_t>{0, 3}));
    EXPECT_SAYS(message_of<UsageError>([&] { cut(torch::full({2}, rows, at::kLong)); }),
                "there are");
  }
}

TEST_F(TensorParallel, MisuseIsSaid) {
  ColumnParallelLinear wide(linear(4, 8));
  EXPECT_SAYS(message_of<UsageError>([&] {
                wide(torch::ones({2, 3}, at::kDouble));
              }),
              "an input of shape [2, 3]; its last dimension must be 4");
  RowParallelLinear narrow(linear(4, 8), {.input_is_parallel = false});
  EXPECT_SAYS(message_of<UsageError>([&] {
                narrow(torch::ones({2, 5}, at::kDouble));  // On every rank, none of which waits.
              }),
              "an input of shape [2, 5]; its last dimension must be 4");
  torch::nn::Embedding padded(torch::nn::EmbeddingOptions(4, 2).padding_idx(0));
  EXPECT_SAYS(message_of<UsageError>([&] { VocabParallelEmbedding cut(padded); }),
              "cannot be sharded");
}

TEST_F(TensorParallel, IsWrittenAsTheGuideHasIt) {
  torch::nn::Linear linear1 = linear(4, 8);
  torch::nn::Linear linear2 = linear(8, 4);
  const torch::nn::Linear linear3 = linear(4, 3);
  const torch::nn::Embedding embedding(7, 4);
  const ProcessGroup& group = group_;
  const at::Tensor inputs = torch::ones({2, 4}, at::kDouble);

  // clang-format off
lockstep::ColumnParallelLinear wide(linear1, {.process_group = group});    // [..., in] -> this rank's part of out
lockstep::RowParallelLinear narrow(linear2, {.process_group = group});     // that part -> [..., out], on every rank
auto outputs = narrow(torch::gelu(wide(inputs)));                          // one exchange forward, one backward

lockstep::VocabParallelEmbedding tokens(embedding, {.process_group = group});
lockstep::ColumnParallelLinear head(linear3, {.process_group = group, .gather_output = true});
  // clang-format on
  outputs.square().sum().backward();
  const double max_norm = 0.01;
  // clang-format off
const std::vector<at::Tensor> parts{wide->weight, wide->bias, narrow->weight};   // differs between ranks
const std::vector<at::Tensor> whole{narrow->bias};                               // equal on all ranks
const double norm = std::hypot(lockstep::get_total_norm(parts, {.process_group = group}), lockstep::get_total_norm(whole));
lockstep::clip_grads_with_norm_(parts, max_norm, norm);
lockstep::clip_grads_with_norm_(whole, max_norm, norm);
  // clang-format on
  linear2(torch::gelu(linear1(inputs))).square().sum().backward();
  const std::vector<at::Tensor> uncut{linear1->weight, linear1->bias, linear2->weight,
                                      linear2->bias};
  EXPECT_NEAR(norm, clip_grad_norm_(uncut, max_norm), 1e-9);
  expect_near(wide->weight.grad(), part(linear1->weight.grad(), 0));
  expect_near(narrow->bias.grad(), linear2->bias.grad());
  EXPECT_EQ(head(outputs).size(1), 3);
  EXPECT_EQ(tokens(torch::zeros({2}, at::kLong)).size(1), 4);
}

TEST_F(TensorParallel, AGptLearnsAsTheUncut) {
  if (12 % group_.world_size() != 0) GTEST_SKIP() << "the heads need a divisor of 12 as ranks";
  const models::GptConfig config{.n_layer = 2,
                                 .n_head = 12,
                                 .n_embd = 24,
                                 .vocab_size = 13,
                                 .block_size = 8,
                                 .embd_pdrop = 0,
                                 .resid_pdrop = 0,
                                 .attn_pdrop = 0};
  torch::manual_seed(1);
  models::Gpt uncut(config);
  torch::manual_seed(1);
  models::Gpt cut(config);
  cut->shard_over(group_);
  uncut->to(at::kDouble);
  cut->to(at::kDouble);
  std::int64_t uncut_numbers = 0;
  std::int64_t cut_numbers = 0;
  for (const auto& parameter : uncut->parameters()) uncut_numbers += parameter.numel();
  for (const auto& parameter : cut->parameters()) cut_numbers += parameter.numel();
  if (group_.world_size() > 1) {
    EXPECT_LT(cut_numbers, uncut_numbers * 3 / 4);
  }
  EXPECT_EQ(cut->named_parameters().keys(), uncut->named_parameters().keys());

  torch::optim::SGD uncut_optimizer(uncut->parameters(), 0.1);
  torch::optim::SGD cut_optimizer(cut->parameters(), 0.1);
  for (int step = 0; step < 4; ++step) {
    const auto tokens = torch::randint(13, {3, 8}, at::kLong);
    const auto targets = torch::randint(13, {3, 8}, at::kLong);
    uncut_optimizer.zero_grad();
    cut_optimizer.zero_grad();
    const auto expected = std::get<1>(uncut->forward(tokens, targets));
    const auto actual = std::get<1>(cut->forward(tokens, targets));
    EXPECT_NEAR(actual.item<double>(), expected.item<double>(), 1e-9) << step;
    expected.backward();
    actual.backward();
    uncut_optimizer.step();
    cut_optimizer.step();
  }
  expect_near(cut->named_parameters()["blocks.0.mlp.0.weight"],
              part(uncut->named_parameters()["blocks.0.mlp.0.weight"], 0));
  expect_near(cut->named_parameters()["emb_stem.pos_emb"],
              uncut->named_parameters()["emb_stem.pos_emb"]);
}

}  // namespace
}  // namespace lockstep
