#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "lockstep/nn/tensor_parallel.h"
#include "models/gpt.h"

/// The parts of Gpt, named and ordered as those of the tutorial's model.py: the order decides which
/// weight gets which random number.
namespace models {

/// What torch.nn.MultiheadAttention is there: all heads' queries, keys and values by one matrix, a
/// causal attention, and a projection of the heads' outputs. [batch, length, n_embd].
class CausalAttention : public torch::nn::Module {
 public:
  explicit CausalAttention(const GptConfig& config);
  /// `mask`: [length, length], 1 where the row's position may see the column's, else 0.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask);
  /// From now on this rank has its share of the heads.
  void shard_over(const lockstep::ProcessGroup& group);

 private:
  std::int64_t heads_;
  double dropout_;
  at::Tensor in_proj_weight_;
  at::Tensor in_proj_bias_;
  torch::nn::Linear out_proj_;
  lockstep::ProcessGroup group_;  ///< That the heads are cut over, if they are.
  lockstep::RowParallelLinear cut_out_proj_ = nullptr;
};

/// The tutorial's MultiheadAttentionLayer: attention and a second projection.
class AttentionLayer : public torch::nn::Module {
 public:
  explicit AttentionLayer(const GptConfig& config);
  at::Tensor forward(const at::Tensor& x);
  void shard_over(const lockstep::ProcessGroup& group) { attention_->shard_over(group); }

 private:
  double dropout_;
  torch::nn::Linear c_proj_;
  at::Tensor mask_;
  std::shared_ptr<CausalAttention> attention_;
};

/// Attention and a two-layer perceptron, each behind a layer norm and beside a residual connection.
class GptBlock : public torch::nn::Module {
 public:
  explicit GptBlock(const GptConfig& config);
  at::Tensor forward(const at::Tensor& x);
  /// Heads and the perceptron's hidden values.
  void shard_over(const lockstep::ProcessGroup& group);

 private:
  torch::nn::LayerNorm ln1_;
  torch::nn::LayerNorm ln2_;
  std::shared_ptr<AttentionLayer> attention_;
  torch::nn::Sequential mlp_;
};

/// Embeddings of tokens and positions, added.
class EmbeddingStem : public torch::nn::Module {
 public:
  explicit EmbeddingStem(const GptConfig& config);
  at::Tensor forward(const at::Tensor& idx);
  /// The vocabulary.
  void shard_over(const lockstep::ProcessGroup& group);

 private:
  double dropout_;
  torch::nn::Embedding tok_emb_;
  lockstep::VocabParallelEmbedding cut_tok_emb_ = nullptr;
  at::Tensor pos_emb_;
};

}  // namespace models
