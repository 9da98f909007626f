#include "models/gpt.h"

#include <cmath>

#include <ATen/core/Reduction.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <torch/nn/init.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "models/gpt_layers.h"

namespace models {
namespace {

const GptConfig& checked(const GptConfig& config) {
  for (const auto& [name, value] : {std::pair("n_layer", config.n_layer),
                                    {"n_head", config.n_head},
                                    {"n_embd", config.n_embd},
                                    {"vocab_size", config.vocab_size},
                                    {"block_size", config.block_size}}) {
    if (value < 1) {
      throw lockstep::UsageError(
          lockstep::concat("make a GPT: ", name, " is ", value, "; it must be at least 1"));
    }
  }
  if (config.n_embd % config.n_head != 0) {
    throw lockstep::UsageError(lockstep::concat("make a GPT: n_embd ", config.n_embd,
                                                " does not divide by n_head ", config.n_head,
                                                "; choose a multiple of it"));
  }
  for (const auto& [name, value] : {std::pair("embd_pdrop", config.embd_pdrop),
                                    {"resid_pdrop", config.resid_pdrop},
                                    {"attn_pdrop", config.attn_pdrop}}) {
    if (!(value >= 0 && value <= 1)) {
      throw lockstep::UsageError(
          lockstep::concat("make a GPT: ", name, " is ", value, "; it must be from 0 to 1"));
    }
  }
  return config;
}

torch::nn::Sequential make_blocks(const GptConfig& config) {
  torch::nn::Sequential blocks;
  for (std::int64_t i = 0; i < config.n_layer; ++i) {
    blocks->push_back(std::make_shared<GptBlock>(config));
  }
  return blocks;
}

// GPT-2's: residual projections are scaled by the number of layers.
void initialize(torch::nn::Module& gpt, std::int64_t layers) {
  constexpr double kStandardDeviation = 0.02;
  const at::NoGradGuard no_grad;
  for (const auto& module : gpt.modules(/*include_self=*/false)) {
    if (const auto* linear = module->as<torch::nn::LinearImpl>()) {
      torch::nn::init::normal_(linear->weight, 0.0, kStandardDeviation);
      if (linear->bias.defined()) torch::nn::init::zeros_(linear->bias);
    } else if (const auto* embedding = module->as<torch::nn::EmbeddingImpl>()) {
      torch::nn::init::normal_(embedding->weight, 0.0, kStandardDeviation);
    }
  }
  for (const auto& parameter : gpt.named_parameters()) {
    if (parameter.key().ends_with("c_proj.weight")) {
      torch::nn::init::normal_(parameter.value(), 0.0,
                               kStandardDeviation / std::sqrt(2.0 * static_cast<double>(layers)));
    }
  }
}

}  // namespace

GptImpl::GptImpl(const GptConfig& config)
    : config_(checked(config)),
      stem_(register_module("emb_stem", std::make_shared<EmbeddingStem>(config))),
      blocks_(register_module("blocks", make_blocks(config))),
      norm_(register_module("ln_f",
                            torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.n_embd})))),
      head_(register_module(
          "head", torch::nn::Linear(
                      torch::nn::LinearOptions(config.n_embd, config.vocab_size).bias(false)))) {
  initialize(*this, config.n_layer);
}

void GptImpl::shard_over(const lockstep::ProcessGroup& group) {
  for (const auto& block : blocks_->named_children()) {
    block.value()->as<GptBlock>()->shard_over(group);
  }
  stem_->shard_over(group);
  cut_head_ = replace_module(
      "head",
      lockstep::ColumnParallelLinear(head_, lockstep::ColumnParallelLinearOptions{
                                                .process_group = group, .gather_output = true}));
}

torch::nn::Sequential GptImpl::layers() const {
  torch::nn::Sequential layers;
  layers->push_back("emb_stem", stem_);
  for (const auto& block : blocks_->named_children()) {
    layers->push_back("block" + block.key(), std::dynamic_pointer_cast<GptBlock>(block.value()));
  }
  layers->push_back("ln_f", norm_);
  if (cut_head_) {
    layers->push_back("head", cut_head_);
  } else {
    layers->push_back("head", head_);
  }
  return layers;
}

std::tuple<at::Tensor, at::Tensor> GptImpl::forward(const at::Tensor& idx,
                                                    const at::Tensor& targets) {
  if (idx.dim() != 2 || idx.size(1) > config_.block_size) {
    throw lockstep::UsageError(lockstep::concat("GPT: tokens of shape ", idx.sizes(),
                                                "; give [batch, length] with at most ",
                                                config_.block_size, " (block_size) a sequence"));
  }
  const at::Tensor values = norm_(blocks_->forward(stem_->forward(idx)));
  const at::Tensor logits = cut_head_ ? cut_head_(values) : head_(values);
  if (!targets.defined()) return {logits, at::Tensor()};
  return {logits, at::cross_entropy_loss(logits.view({-1, logits.size(-1)}), targets.reshape(-1),
                                         /*weight=*/{}, at::Reduction::Mean,
                                         /*ignore_index=*/-1)};
}

}  // namespace models
