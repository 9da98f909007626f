#include "models/gpt2.h"

#include <cmath>
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/init.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace models {
namespace {

constexpr double kStandardDeviation = 0.02;

const Gpt2Config& checked(const Gpt2Config& config) {
  for (const auto& [name, value] : {std::pair("n_layer", config.n_layer),
                                    {"n_head", config.n_head},
                                    {"n_embd", config.n_embd},
                                    {"vocab_size", config.vocab_size},
                                    {"n_positions", config.n_positions}}) {
    if (value < 1) {
      throw lockstep::UsageError(
          lockstep::concat("make a GPT-2: ", name, " is ", value, "; it must be at least 1"));
    }
  }
  if (config.n_embd % config.n_head != 0) {
    throw lockstep::UsageError(lockstep::concat("make a GPT-2: n_embd ", config.n_embd,
                                                " does not divide by n_head ", config.n_head,
                                                "; choose a multiple of it"));
  }
  return config;
}

torch::nn::LayerNorm layer_norm(const Gpt2Config& config) {
  return torch::nn::LayerNorm(
      torch::nn::LayerNormOptions({config.n_embd}).eps(config.layer_norm_epsilon));
}

/// The last layers before a residual connection are smaller the more of them there are.
double residual_deviation(const Gpt2Config& config) {
  return kStandardDeviation / std::sqrt(2.0 * static_cast<double>(config.n_layer));
}

}  // namespace

/// A linear layer whose weight is [in, out], as OpenAI published it.
class Gpt2Conv1d : public torch::nn::Module {
 public:
  Gpt2Conv1d(std::int64_t inputs, std::int64_t outputs, double standard_deviation)
      : weight_(register_parameter("weight", at::empty({inputs, outputs}))),
        bias_(register_parameter("bias", at::zeros({outputs}))) {
    torch::nn::init::normal_(weight_, 0.0, standard_deviation);
  }
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight_.t(), bias_); }

 private:
  at::Tensor weight_;
  at::Tensor bias_;
};

class Gpt2Attention : public torch::nn::Module {
 public:
  explicit Gpt2Attention(const Gpt2Config& config)
      : config_(config),
        c_attn_(register_module(
            "c_attn",
            std::make_shared<Gpt2Conv1d>(config.n_embd, 3 * config.n_embd, kStandardDeviation))),
        c_proj_(
            register_module("c_proj", std::make_shared<Gpt2Conv1d>(config.n_embd, config.n_embd,
                                                                   residual_deviation(config)))) {}

  at::Tensor forward(const at::Tensor& x) {
    std::vector<at::Tensor> qkv = c_attn_->forward(x).chunk(3, -1);
    for (at::Tensor& each : qkv) {
      each = each.view({x.size(0), x.size(1), config_.n_head, -1}).transpose(1, 2);
    }
    const at::Tensor heads = at::scaled_dot_product_attention(
        qkv[0], qkv[1], qkv[2], /*attn_mask=*/{}, is_training() ? config_.attn_pdrop : 0.0,
        /*is_causal=*/true);
    const at::Tensor merged = heads.transpose(1, 2).reshape(x.sizes());
    return at::dropout(c_proj_->forward(merged), config_.resid_pdrop, is_training());
  }

 private:
  Gpt2Config config_;
  std::shared_ptr<Gpt2Conv1d> c_attn_;
  std::shared_ptr<Gpt2Conv1d> c_proj_;
};

class Gpt2Perceptron : public torch::nn::Module {
 public:
  explicit Gpt2Perceptron(const Gpt2Config& config)
      : dropout_(config.resid_pdrop),
        c_fc_(register_module("c_fc", std::make_shared<Gpt2Conv1d>(config.n_embd, 4 * config.n_embd,
                                                                   kStandardDeviation))),
        c_proj_(
            register_module("c_proj", std::make_shared<Gpt2Conv1d>(4 * config.n_embd, config.n_embd,
                                                                   residual_deviation(config)))) {}

  at::Tensor forward(const at::Tensor& x) {
    return at::dropout(c_proj_->forward(at::gelu(c_fc_->forward(x), "tanh")), dropout_,
                       is_training());
  }

 private:
  double dropout_;
  std::shared_ptr<Gpt2Conv1d> c_fc_;
  std::shared_ptr<Gpt2Conv1d> c_proj_;
};

/// Attention and a perceptron, each behind a layer norm and beside a residual connection.
class Gpt2Block : public torch::nn::Module {
 public:
  explicit Gpt2Block(const Gpt2Config& config)
      : ln_1_(register_module("ln_1", layer_norm(config))),
        attn_(register_module("attn", std::make_shared<Gpt2Attention>(config))),
        ln_2_(register_module("ln_2", layer_norm(config))),
        mlp_(register_module("mlp", std::make_shared<Gpt2Perceptron>(config))) {}

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor attended = x + attn_->forward(ln_1_(x));
    return attended + mlp_->forward(ln_2_(attended));
  }

 private:
  torch::nn::LayerNorm ln_1_;
  std::shared_ptr<Gpt2Attention> attn_;
  torch::nn::LayerNorm ln_2_;
  std::shared_ptr<Gpt2Perceptron> mlp_;
};

Gpt2Impl::Gpt2Impl(const Gpt2Config& config)
    : config_(checked(config)),
      tokens_(torch::nn::Embedding(config.vocab_size, config.n_embd)),
      positions_(torch::nn::Embedding(config.n_positions, config.n_embd)),
      norm_(layer_norm(config)) {
  const auto transformer = register_module("transformer", std::make_shared<torch::nn::Module>());
  transformer->register_module("wte", tokens_);
  transformer->register_module("wpe", positions_);
  torch::nn::init::normal_(tokens_->weight, 0.0, kStandardDeviation);
  torch::nn::init::normal_(positions_->weight, 0.0, kStandardDeviation);
  const auto layers = transformer->register_module("h", std::make_shared<torch::nn::Module>());
  for (std::int64_t i = 0; i < config.n_layer; ++i) {
    blocks_.push_back(
        layers->register_module(std::to_string(i), std::make_shared<Gpt2Block>(config)));
  }
  transformer->register_module("ln_f", norm_);
}

at::Tensor Gpt2Impl::forward(const at::Tensor& tokens) {
  if (tokens.dim() != 2 || tokens.size(1) > config_.n_positions) {
    throw lockstep::UsageError(lockstep::concat("GPT-2: tokens of shape ", tokens.sizes(),
                                                "; give [batch, length] with at most ",
                                                config_.n_positions, " (n_positions) a sequence"));
  }
  const at::Tensor places =
      at::arange(tokens.size(1), at::TensorOptions(at::kLong).device(tokens.device()));
  at::Tensor x =
      at::dropout(tokens_(tokens) + positions_(places), config_.embd_pdrop, is_training());
  for (const auto& block : blocks_) x = block->forward(x);
  return at::linear(norm_(x), tokens_->weight);
}

bool is_gpt2_block(const std::string&, const torch::nn::Module& module) {
  return dynamic_cast<const Gpt2Block*>(&module) != nullptr;
}

}  // namespace models
