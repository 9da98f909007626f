#pragma once

#include <cstdint>
#include <memory>
#include <tuple>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include "lockstep/nn/tensor_parallel.h"

namespace models {

class EmbeddingStem;

/// Names and dropouts are those of the GPTConfig of PyTorch's minGPT-DDP tutorial; sizes are those
/// of its gpt-micro.
struct GptConfig {
  std::int64_t n_layer = 4;
  std::int64_t n_head = 4;
  std::int64_t n_embd = 128;  ///< A multiple of n_head.
  std::int64_t vocab_size = 50257;
  std::int64_t block_size = 1024;  ///< The longest sequence.
  double embd_pdrop = 0.1;
  double resid_pdrop = 0.1;
  double attn_pdrop = 0.1;
};

/// The GPT of PyTorch's minGPT-DDP tutorial (pytorch/examples, distributed/minGPT-ddp), with the
/// names of its state_dict, so that weights go to and from Python; after at::manual_seed(n) its
/// first weights are the bits that Python's has after torch.manual_seed(n).
///
/// One thing differs: no position sees a later one. The tutorial adds its mask of ones and zeros to
/// the attention scores, which hides nothing.
/// Errors: UsageError for a size below 1, an n_embd that n_head does not divide, and a dropout
/// outside of 0 to 1.
class GptImpl : public torch::nn::Module {
 public:
  explicit GptImpl(const GptConfig& config);

  /// idx: [batch, length] int64 below vocab_size, length at most block_size. Gives the logits of
  /// each next token, [batch, length, vocab_size], and, with targets of idx's shape, the mean cross
  /// entropy in float32, over targets other than -1; else the second is undefined.
  /// Errors: UsageError for longer sequences.
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& idx, const at::Tensor& targets = {});

  /// Its layers, shared, one behind the other: tokens in, logits out. What a pipeline divides.
  torch::nn::Sequential layers() const;

  /// Shards the weights of attention, perceptrons, embedding and head over the group's ranks
  /// (tensor parallelism): each keeps its shard, and all of them give what the unsharded net gives.
  /// All ranks must have constructed the same net, and draw the same random numbers from then on.
  /// Once, before its optimizer is made. Collective: forward and backward, from then on. Errors:
  /// UsageError for a number of heads that the ranks do not divide.
  void shard_over(const lockstep::ProcessGroup& group);

  const GptConfig& config() const { return config_; }

 private:
  GptConfig config_;
  std::shared_ptr<EmbeddingStem> stem_;
  torch::nn::Sequential blocks_;
  torch::nn::LayerNorm norm_;
  torch::nn::Linear head_;
  lockstep::ColumnParallelLinear cut_head_ = nullptr;
};
TORCH_MODULE(Gpt);

}  // namespace models
