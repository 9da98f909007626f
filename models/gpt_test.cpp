#include "models/gpt.h"

#include <cmath>
#include <string>

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/serialize/archive.h>

#include "lockstep/base/error.h"

namespace models {
namespace {

constexpr GptConfig kTiny = {.n_layer = 2,
                             .n_head = 2,
                             .n_embd = 16,
                             .vocab_size = 11,
                             .block_size = 8,
                             .embd_pdrop = 0,
                             .resid_pdrop = 0,
                             .attn_pdrop = 0};

Gpt tiny_gpt(const GptConfig& config = kTiny) {
  at::manual_seed(1);
  return Gpt(config);
}

at::Tensor tokens(std::int64_t batch, std::int64_t length) {
  return (at::arange(batch * length, at::kLong) * 7 % kTiny.vocab_size).view({batch, length});
}

at::Tensor parameter_of(const Gpt& gpt, const std::string& name) {
  return gpt->named_parameters()[name];
}

TEST(Gpt, GivesLogitsAndTheMeanCrossEntropy) {
  auto gpt = tiny_gpt();
  const auto [logits, loss] = gpt(tokens(3, 5), tokens(3, 5));
  EXPECT_EQ(logits.sizes(), (std::vector<std::int64_t>{3, 5, 11}));
  EXPECT_NEAR(loss.item<double>(), std::log(11.0), 0.2);
  EXPECT_FALSE(std::get<1>(gpt(tokens(1, 8))).defined());
}

TEST(Gpt, TargetsOfMinusOneDoNotCount) {
  auto gpt = tiny_gpt();
  at::Tensor targets = tokens(1, 4).clone();
  targets.narrow(1, 2, 2).fill_(-1);
  const double masked = std::get<1>(gpt(tokens(1, 4), targets)).item<double>();
  const double first =
      std::get<1>(gpt(tokens(1, 4).narrow(1, 0, 2), tokens(1, 4).narrow(1, 0, 2))).item<double>();
  EXPECT_NEAR(masked, first, 1e-5);
}

TEST(Gpt, NoPositionSeesALaterOne) {
  const at::NoGradGuard no_grad;
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    auto gpt = tiny_gpt();
    gpt->to(dtype);
    const at::Tensor one = tokens(2, 8);
    const at::Tensor other =
        at::cat({one.narrow(1, 0, 5), at::full_like(one.narrow(1, 5, 3), 3)}, 1);
    const at::Tensor difference = std::get<0>(gpt(one)) - std::get<0>(gpt(other));
    EXPECT_EQ(difference.narrow(1, 0, 5).abs().max().item<double>(), 0) << dtype;
    EXPECT_GT(difference.narrow(1, 5, 3).abs().max().item<double>(), 0) << dtype;
  }
}

// In bfloat16 on a CPU the attention is computed in parts, in float32 by the fused kernel.
TEST(Gpt, AttentionInPartsIsTheFusedOne) {
  const at::NoGradGuard no_grad;
  auto gpt = tiny_gpt();
  // So that the attention shows in the logits, and is neither even nor all on one position.
  for (const auto& parameter : gpt->named_parameters()) {
    if (parameter.key().ends_with("proj.weight")) parameter.value().mul_(20);
  }
  const at::Tensor fused = std::get<0>(gpt(tokens(2, 8)));
  gpt->to(at::kBFloat16);
  const at::Tensor parts = std::get<0>(gpt(tokens(2, 8))).to(at::kFloat);
  EXPECT_LT((fused - parts).abs().max().item<double>(), 0.05 * fused.abs().max().item<double>());
}

TEST(Gpt, FirstWeightsAreThoseOfGpt2) {
  auto gpt =
      tiny_gpt({.n_layer = 8, .n_head = 4, .n_embd = 128, .vocab_size = 100, .block_size = 4});
  EXPECT_NEAR(parameter_of(gpt, "head.weight").std().item<double>(), 0.02, 1e-3);
  EXPECT_NEAR(parameter_of(gpt, "emb_stem.tok_emb.weight").std().item<double>(), 0.02, 1e-3);
  EXPECT_NEAR(parameter_of(gpt, "blocks.7.attn.c_proj.weight").std().item<double>(), 0.02 / 4,
              3e-4);
  for (const auto& parameter : gpt->named_parameters()) {
    const bool zero = parameter.key().ends_with("bias") || parameter.key().ends_with("pos_emb");
    if (!zero) continue;
    EXPECT_EQ(parameter.value().abs().max().item<double>(), 0) << parameter.key();
  }
  EXPECT_TRUE(parameter_of(gpt, "ln_f.weight").equal(at::ones({128})));
}

TEST(Gpt, DropoutActsInTrainingAlone) {
  GptConfig config = kTiny;
  for (double* dropout : {&config.embd_pdrop, &config.resid_pdrop, &config.attn_pdrop}) {
    *dropout = 0.5;
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      auto gpt = tiny_gpt(config);
      gpt->to(dtype);
      EXPECT_FALSE(std::get<0>(gpt(tokens(1, 8))).equal(std::get<0>(gpt(tokens(1, 8))))) << dtype;
      gpt->eval();
      EXPECT_TRUE(std::get<0>(gpt(tokens(1, 8))).equal(std::get<0>(gpt(tokens(1, 8))))) << dtype;
    }
    *dropout = 0;
  }
}

TEST(Gpt, SizesThatCannotBeAreRefused) {
  EXPECT_THROW(Gpt(GptConfig{.n_layer = 0}), lockstep::UsageError);
  EXPECT_THROW(Gpt(GptConfig{.n_head = 3, .n_embd = 16}), lockstep::UsageError);
  EXPECT_THROW(Gpt(GptConfig{.attn_pdrop = 1.5}), lockstep::UsageError);
  auto gpt = tiny_gpt();
  EXPECT_THROW(gpt(tokens(1, 9)), lockstep::UsageError);
}

}  // namespace
}  // namespace models
