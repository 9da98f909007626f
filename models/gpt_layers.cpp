#include "models/gpt_layers.h"

#include <cmath>
#include <limits>
#include <vector>

#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/dropout.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/nn/internal/group_functions.h"

namespace models {
namespace {

torch::nn::LayerNorm layer_norm(const GptConfig& config) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.n_embd}));
}

torch::nn::Sequential perceptron(const GptConfig& config) {
  return torch::nn::Sequential(
      torch::nn::Linear(config.n_embd, 4 * config.n_embd), torch::nn::GELU(),
      torch::nn::Linear(4 * config.n_embd, config.n_embd), torch::nn::Dropout(config.resid_pdrop));
}

// The fused kernel is faster, but for bfloat16 on a CPU, where it takes 3 to 6 times as long as its
// parts (sequences of 64 and 128, heads of 32 and 64, forward and backward).
bool fused_is_faster(const at::Tensor& query) {
  return !(query.is_cpu() && query.scalar_type() == at::kBFloat16);
}

at::Tensor attention_in_parts(const std::vector<at::Tensor>& qkv, const at::Tensor& mask,
                              double dropout) {
  const at::Tensor& query = qkv[0];
  const double scale = 1 / std::sqrt(static_cast<double>(query.size(-1)));
  const at::Tensor scores = at::matmul(query * scale, qkv[1].transpose(-2, -1));
  const at::Tensor shares =
      scores.masked_fill(mask.eq(0), -std::numeric_limits<double>::infinity()).softmax(-1);
  return at::matmul(at::dropout(shares, dropout, dropout > 0), qkv[2]);
}

}  // namespace

CausalAttention::CausalAttention(const GptConfig& config)
    : heads_(config.n_head),
      dropout_(config.attn_pdrop),
      in_proj_weight_(
          register_parameter("in_proj_weight", at::empty({3 * config.n_embd, config.n_embd}))),
      in_proj_bias_(register_parameter("in_proj_bias", at::zeros({3 * config.n_embd}))),
      out_proj_(register_module("out_proj", torch::nn::Linear(config.n_embd, config.n_embd))) {
  torch::nn::init::xavier_uniform_(in_proj_weight_);
}

at::Tensor CausalAttention::forward(const at::Tensor& x, const at::Tensor& mask) {
  const auto batch = x.size(0);
  const auto length = x.size(1);
  const at::Tensor inputs = group_ ? lockstep::copy_to_group(x, group_) : x;
  std::vector<at::Tensor> qkv = at::linear(inputs, in_proj_weight_, in_proj_bias_).chunk(3, -1);
  for (at::Tensor& each : qkv) each = each.view({batch, length, heads_, -1}).transpose(1, 2);
  const double dropout = is_training() ? dropout_ : 0.0;
  const at::Tensor heads =
      fused_is_faster(qkv[0])
          ? at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], /*attn_mask=*/{}, dropout,
                                             /*is_causal=*/true)
          : attention_in_parts(qkv, mask, dropout);
  const at::Tensor merged = heads.transpose(1, 2).reshape({batch, length, -1});
  return group_ ? cut_out_proj_(merged) : out_proj_(merged);
}

void CausalAttention::shard_over(const lockstep::ProcessGroup& group) {
  if (heads_ % group.world_size() != 0) {
    throw lockstep::UsageError(lockstep::concat("cut a GPT: ", heads_, " heads over ",
                                                group.world_size(),
                                                " ranks; choose a multiple of them"));
  }
  // Each of queries, keys and values, so that the rank has whole heads of all three.
  const auto own_heads = [&](const at::Tensor& unsharded) {
    std::vector<at::Tensor> parts;
    for (const at::Tensor& each : unsharded.detach().chunk(3)) {
      parts.push_back(each.chunk(group.world_size())[static_cast<std::size_t>(group.rank())]);
    }
    return at::cat(parts).set_requires_grad(true);
  };
  in_proj_weight_ = parameters_["in_proj_weight"] = own_heads(in_proj_weight_);
  in_proj_bias_ = parameters_["in_proj_bias"] = own_heads(in_proj_bias_);
  cut_out_proj_ = replace_module(
      "out_proj", lockstep::RowParallelLinear(
                      out_proj_, lockstep::RowParallelLinearOptions{.process_group = group}));
  heads_ /= group.world_size();
  group_ = group;
}

// The mask is a buffer, as in the tutorial, so that state dicts have the same names.
AttentionLayer::AttentionLayer(const GptConfig& config)
    : dropout_(config.resid_pdrop),
      c_proj_(register_module("c_proj", torch::nn::Linear(config.n_embd, config.n_embd))),
      mask_(register_buffer("mask", at::ones({config.block_size, config.block_size})
                                        .tril()
                                        .view({1, 1, config.block_size, config.block_size}))),
      attention_(register_module("attn", std::make_shared<CausalAttention>(config))) {}

at::Tensor AttentionLayer::forward(const at::Tensor& x) {
  const auto length = x.size(1);
  const at::Tensor mask = mask_[0][0].narrow(0, 0, length).narrow(1, 0, length);
  return at::dropout(c_proj_(attention_->forward(x, mask)), dropout_, is_training());
}

GptBlock::GptBlock(const GptConfig& config)
    : ln1_(register_module("ln1", layer_norm(config))),
      ln2_(register_module("ln2", layer_norm(config))),
      attention_(register_module("attn", std::make_shared<AttentionLayer>(config))),
      mlp_(register_module("mlp", perceptron(config))) {}

at::Tensor GptBlock::forward(const at::Tensor& x) {
  const at::Tensor attended = x + attention_->forward(ln1_(x));
  return attended + mlp_->forward(ln2_(attended));
}

void GptBlock::shard_over(const lockstep::ProcessGroup& group) {
  attention_->shard_over(group);
  const torch::nn::Linear wide(mlp_->ptr<torch::nn::LinearImpl>(0));
  const torch::nn::Linear narrow(mlp_->ptr<torch::nn::LinearImpl>(2));
  mlp_ = replace_module(
      "mlp", torch::nn::Sequential(
                 lockstep::ColumnParallelLinear(
                     wide, lockstep::ColumnParallelLinearOptions{.process_group = group}),
                 torch::nn::GELU(),
                 lockstep::RowParallelLinear(
                     narrow, lockstep::RowParallelLinearOptions{.process_group = group}),
                 torch::nn::Dropout(mlp_->ptr<torch::nn::DropoutImpl>(3))));
}

EmbeddingStem::EmbeddingStem(const GptConfig& config)
    : dropout_(config.embd_pdrop),
      tok_emb_(register_module("tok_emb", torch::nn::Embedding(config.vocab_size, config.n_embd))),
      pos_emb_(register_parameter("pos_emb", at::zeros({1, config.block_size, config.n_embd}))) {}

at::Tensor EmbeddingStem::forward(const at::Tensor& idx) {
  const at::Tensor positions = pos_emb_.narrow(1, 0, idx.size(1));
  const at::Tensor tokens = cut_tok_emb_ ? cut_tok_emb_(idx) : tok_emb_(idx);
  return at::dropout(tokens + positions, dropout_, is_training());
}

void EmbeddingStem::shard_over(const lockstep::ProcessGroup& group) {
  cut_tok_emb_ = replace_module(
      "tok_emb", lockstep::VocabParallelEmbedding(
                     tok_emb_, lockstep::VocabParallelEmbeddingOptions{.process_group = group}));
}

}  // namespace models
