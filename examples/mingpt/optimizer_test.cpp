#include "examples/mingpt/optimizer.h"

#include <set>
#include <string>

#include <gtest/gtest.h>
#include <torch/nn/modules/conv.h>
#include <torch/serialize/archive.h>

#include "lockstep/base/error.h"
#include "models/gpt.h"

namespace mingpt {
namespace {

TEST(Optimizer, MatricesOfLinearLayersDecayAndNothingElse) {
  models::Gpt gpt(
      models::GptConfig{.n_layer = 1, .n_head = 1, .n_embd = 4, .vocab_size = 5, .block_size = 3});
  auto optimizer = make_optimizer(*gpt, {.learning_rate = 0.5, .weight_decay = 0.25});
  std::vector<std::vector<std::string>> names;
  for (const auto& group : optimizer.param_groups()) {
    names.emplace_back();
    for (const at::Tensor& parameter : group.params()) {
      for (const auto& named : gpt->named_parameters()) {
        if (named.value().is_same(parameter)) names.back().push_back(named.key());
      }
    }
  }
  EXPECT_EQ(names, (std::vector<std::vector<std::string>>{
                       {"blocks.0.attn.attn.in_proj_weight", "blocks.0.attn.attn.out_proj.weight",
                        "blocks.0.attn.c_proj.weight", "blocks.0.mlp.0.weight",
                        "blocks.0.mlp.2.weight", "head.weight"},
                       {"blocks.0.attn.attn.in_proj_bias", "blocks.0.attn.attn.out_proj.bias",
                        "blocks.0.attn.c_proj.bias", "blocks.0.ln1.bias", "blocks.0.ln1.weight",
                        "blocks.0.ln2.bias", "blocks.0.ln2.weight", "blocks.0.mlp.0.bias",
                        "blocks.0.mlp.2.bias", "emb_stem.pos_emb", "emb_stem.tok_emb.weight",
                        "ln_f.bias", "ln_f.weight"}}));
  const auto options = [&](std::size_t group) -> torch::optim::AdamWOptions& {
    return static_cast<torch::optim::AdamWOptions&>(optimizer.param_groups()[group].options());
  };
  EXPECT_EQ(options(0).weight_decay(), 0.25);
  EXPECT_EQ(options(1).weight_decay(), 0.0);
  EXPECT_EQ(options(1).betas(), std::tuple(0.9, 0.95));
  set_learning_rate(optimizer, 0.125);
  EXPECT_EQ(options(0).lr(), 0.125);
  EXPECT_EQ(options(1).lr(), 0.125);
}

TEST(Optimizer, AParameterOfNeitherKindIsRefusedByName) {
  const torch::nn::Conv2d layer(1, 1, 3);
  try {
    make_optimizer(*layer, {});
    FAIL() << "taken";
  } catch (const lockstep::UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("whether weight decays"), std::string::npos);
  }
}

TEST(LearningRate, RisesInTheWarmUpAndFallsAlongACosine) {
  const OptimizerConfig config = {
      .learning_rate = 1.0, .warmup_steps = 4, .final_learning_rate_factor = 0.2};
  EXPECT_DOUBLE_EQ(learning_rate(config, 0, 104), 0.25);
  EXPECT_DOUBLE_EQ(learning_rate(config, 3, 104), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(config, 4, 104), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(config, 54, 104), 0.6);
  EXPECT_NEAR(learning_rate(config, 103, 104), 0.2, 1e-3);
  EXPECT_DOUBLE_EQ(learning_rate(config, 200, 104), 0.2);
}

TEST(LearningRate, StaysWhereNothingIsToChange) {
  const OptimizerConfig config = {.learning_rate = 0.5, .final_learning_rate_factor = 1};
  for (const std::int64_t step : {0, 1, 50, 99}) EXPECT_EQ(learning_rate(config, step, 100), 0.5);
  EXPECT_EQ(learning_rate({.learning_rate = 1, .warmup_steps = 10}, 0, 5), 0.1);
}

}  // namespace
}  // namespace mingpt
