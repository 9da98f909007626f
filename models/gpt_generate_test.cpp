#include "models/gpt_generate.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/serialize/archive.h>

#include "lockstep/base/error.h"

namespace models {
namespace {

Gpt writer(double dropout = 0) {
  at::set_num_threads(1);  // On a busy machine threads wait for each other longer than they work.
  at::manual_seed(2);
  return Gpt(GptConfig{.n_layer = 1,
                       .n_head = 2,
                       .n_embd = 16,
                       .vocab_size = 9,
                       .block_size = 4,
                       .embd_pdrop = dropout,
                       .resid_pdrop = dropout,
                       .attn_pdrop = dropout});
}

at::Tensor start() {
  return at::zeros({2, 1}, at::kLong);
}

GenerateOptions seeded(GenerateOptions options) {
  options.generator = at::detail::createCPUGenerator(7);
  return options;
}

TEST(Generate, GoesOnBeyondTheBlockAndKeepsThePrompt) {
  auto gpt = writer();
  const at::Tensor text = generate(*gpt, start(), {.max_new_tokens = 10});
  EXPECT_EQ(text.sizes(), (std::vector<std::int64_t>{2, 11}));
  EXPECT_TRUE(text.narrow(1, 0, 1).equal(start()));
  EXPECT_TRUE(generate(*gpt, start(), {.max_new_tokens = 0}).equal(start()));
}

TEST(Generate, TheSameGeneratorGivesTheSameText) {
  auto gpt = writer();
  const GenerateOptions options = {.max_new_tokens = 20};
  EXPECT_TRUE(
      generate(*gpt, start(), seeded(options)).equal(generate(*gpt, start(), seeded(options))));
}

TEST(Generate, TemperatureZeroAndTopOneAreTheLikeliest) {
  auto gpt = writer();
  EXPECT_TRUE(generate(*gpt, start(), {.max_new_tokens = 9, .temperature = 0})
                  .equal(generate(*gpt, start(), {.max_new_tokens = 9, .top_k = 1})));
}

TEST(Generate, ANearlyColdTextIsTheLikeliest) {
  auto gpt = writer();
  EXPECT_TRUE(generate(*gpt, start(), {.max_new_tokens = 9, .temperature = 0})
                  .equal(generate(*gpt, start(), {.max_new_tokens = 9, .temperature = 1e-6})));
}

TEST(Generate, EachTokenComesOfTheBlockBeforeIt) {
  auto gpt = writer();
  const at::Tensor text = generate(*gpt, start(), {.max_new_tokens = 10, .temperature = 0});
  gpt->eval();
  for (std::int64_t at = 4; at < 11; ++at) {
    const auto [logits, loss] = gpt(text.narrow(1, at - 4, 4));
    EXPECT_TRUE(text.select(1, at).equal(logits.select(1, -1).argmax(-1))) << at;
  }
}

TEST(Generate, TopKLeavesOutTheRest) {
  auto gpt = writer();
  gpt->eval();
  const auto [logits, loss] = gpt(start());
  const at::Tensor kept = std::get<1>(logits[0][0].topk(2));
  for (int i = 0; i < 50; ++i) {
    const at::Tensor next =
        generate(*gpt, start(), {.max_new_tokens = 1, .temperature = 5, .top_k = 2});
    EXPECT_TRUE(kept.eq(next[0][1]).any().item<bool>());
  }
  EXPECT_EQ(generate(*gpt, start(), {.max_new_tokens = 1, .top_k = 1000}).size(1), 2);
}

TEST(Generate, LeavesDropoutOutAndTheModeAsItWas) {
  auto gpt = writer(0.5);
  const GenerateOptions likeliest = {.max_new_tokens = 9, .temperature = 0};
  EXPECT_TRUE(generate(*gpt, start(), likeliest).equal(generate(*gpt, start(), likeliest)));
  EXPECT_TRUE(gpt->is_training());
}

TEST(Generate, WhatCannotBeIsRefused) {
  auto gpt = writer();
  EXPECT_THROW(generate(*gpt, at::zeros({1, 0}, at::kLong)), lockstep::UsageError);
  EXPECT_THROW(generate(*gpt, start(), {.temperature = -1}), lockstep::UsageError);
  EXPECT_THROW(generate(*gpt, start(), {.top_k = 0}), lockstep::UsageError);
}

}  // namespace
}  // namespace models
