#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include "lockstep/snapshot/state_dict.h"

namespace models {

class Gpt2Block;

/// Names and values are those of the GPT2Config of Hugging Face's transformers: the published model
/// "gpt2" of 124 million parameters.
struct Gpt2Config {
  std::int64_t n_layer = 12;
  std::int64_t n_head = 12;
  std::int64_t n_embd = 768;  ///< A multiple of n_head.
  std::int64_t vocab_size = 50257;
  std::int64_t n_positions = 1024;  ///< The longest sequence.
  double layer_norm_epsilon = 1e-5;
  double embd_pdrop = 0.1;
  double resid_pdrop = 0.1;
  double attn_pdrop = 0.1;

  bool operator==(const Gpt2Config&) const = default;
};

/// GPT-2 with the parameters of transformers' GPT2LMHeadModel, by their published names:
/// "transformer.h.0.attn.c_attn.weight". The head is the embedding of the tokens, once.
/// Errors: UsageError for a size below 1 and an n_embd that n_head does not divide.
class Gpt2Impl : public torch::nn::Module {
 public:
  explicit Gpt2Impl(const Gpt2Config& config = {});

  /// tokens: [batch, length] int64, length at most n_positions. Gives the logits of each next
  /// token, [batch, length, vocab_size]. Errors: UsageError for longer sequences.
  at::Tensor forward(const at::Tensor& tokens);

  const Gpt2Config& config() const { return config_; }

 private:
  Gpt2Config config_;
  torch::nn::Embedding tokens_;
  torch::nn::Embedding positions_;
  std::vector<std::shared_ptr<Gpt2Block>> blocks_;
  torch::nn::LayerNorm norm_;
};
TORCH_MODULE(Gpt2);

/// The model of a folder of transformers' save_pretrained: config.json and weights as safetensors,
/// sharded or not, in one tensor's memory beside the model's. Weights of another dtype are
/// converted. Errors: UsageError for another architecture or activation, and naming a weight that
/// is missing, unknown or of another shape; CorruptFile; SystemError.
Gpt2 load_pretrained_gpt2(const std::filesystem::path& folder);

/// Writes what load_pretrained_gpt2() and transformers' from_pretrained() read: a new folder with
/// at most `shards` files of weights. `weights`: the state dict of a Gpt2, also where it is
/// sharded. Errors: UsageError where something is at the path; SystemError.
void save_pretrained(const Gpt2Config& config, const lockstep::TensorDict& weights,
                     const std::filesystem::path& folder, int shards = 1);
void save_pretrained(const Gpt2& model, const std::filesystem::path& folder, int shards = 1);

/// Whether a module is one of the n_layer blocks: the units of fully_shard.
bool is_gpt2_block(const std::string& name, const torch::nn::Module& module);

}  // namespace models
