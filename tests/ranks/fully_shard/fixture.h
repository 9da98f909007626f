#pragma once

#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/functional/normalization.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>
#include <torch/utils.h>

#include "lockstep/fully_shard.h"
#include "tests/ranks/fixture.h"

namespace lockstep::testing {

/// A residual block; without bias in one of its layers, so that sizes are uneven.
struct ShardBlockImpl : torch::nn::Module {
  explicit ShardBlockImpl(std::int64_t width)
      : norm(torch::nn::LayerNormOptions({width})),
        up(width, 3 * width + 1),
        down(torch::nn::LinearOptions(3 * width + 1, width).bias(false)) {
    register_module("norm", norm);
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& inputs) { return inputs + down(at::gelu(up(norm(inputs)))); }
  torch::nn::LayerNorm norm;
  torch::nn::Linear up;
  torch::nn::Linear down;
};
TORCH_MODULE(ShardBlock);

/// Tokens to logits: an embedding whose weight is that of the head, too, blocks, a frozen scale, a
/// parameter of one element and one of none, and a buffer.
struct ShardNetImpl : torch::nn::Module {
  explicit ShardNetImpl(std::int64_t width = 13, int depth = 3, std::int64_t tokens = 11)
      : embedding(tokens, width), head(torch::nn::LinearOptions(width, tokens).bias(false)) {
    register_module("embedding", embedding);
    register_module("blocks", blocks);
    for (int i = 0; i < depth; ++i) blocks->push_back(ShardBlock(width));
    register_module("head", head);
    head->weight = embedding->weight;
    head->unregister();
    head->register_weight();
    scale = register_parameter("scale", at::full({width}, 1.25), /*requires_grad=*/false);
    gain = register_parameter("gain", at::ones({1}));
    empty = register_parameter("empty", at::ones({0}));
    register_buffer("offset", at::rand({width}));
  }
  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor values = embedding(tokens) * scale + named_buffers()["offset"];
    for (const auto& block : *blocks) values = block->as<ShardBlock>()->forward(values);
    return head(values * gain);
  }

  /// A Linear whose weight can be registered anew, to share it.
  struct TiedLinearImpl : torch::nn::LinearImpl {
    using LinearImpl::LinearImpl;
    void unregister() { parameters_.erase("weight"); }
    void register_weight() { register_parameter("weight", weight); }
  };
  TORCH_MODULE(TiedLinear);

  torch::nn::Embedding embedding;
  torch::nn::ModuleList blocks;
  TiedLinear head;
  at::Tensor scale;
  at::Tensor gain;
  at::Tensor empty;
};
TORCH_MODULE(ShardNet);

inline at::Tensor token_loss(const at::Tensor& logits, const at::Tensor& targets) {
  return torch::nn::functional::cross_entropy(logits, targets);
}

class FullyShardTest : public Conformance {
 protected:
  // Every rank builds from a seed of its own: only the first exchange can make the models equal.
  void SetUp() override { torch::manual_seed(100 + rank_); }

  FullyShardOptions by_block() const {
    return {.process_group = group_, .auto_wrap_policy = module_wrap_policy<ShardBlockImpl>()};
  }

  /// A plain module with the sharded one's values. Collective.
  template <class Model>
  static void copy_values(const Model& model, torch::nn::Module& plain) {
    load_state_dict(plain, model.full_state_dict());
  }

  /// Whether averages have the bits of DistributedDataParallel's: but for Gloo's both sum in one
  /// order, and a sum of two has only one.
  bool sums_in_one_order() const { return group_.backend_name() != "gloo" || world_size_ <= 2; }

  ::testing::AssertionResult same_values(const TensorDict& actual, const TensorDict& expected,
                                         bool same_bits) const {
    if (actual.size() != expected.size()) {
      return ::testing::AssertionFailure() << actual.size() << " and " << expected.size();
    }
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const auto& [name, value] = expected[i];
      if (actual[i].first != name)
        return ::testing::AssertionFailure() << actual[i].first << " is not " << name;
      const at::Tensor& ours = actual[i].second;
      if (same_bits ? at::equal(ours, value) : at::allclose(ours, value, 1e-4, 1e-5)) continue;
      return ::testing::AssertionFailure()
             << name << " differs by " << (ours - value).abs().max().item<double>();
    }
    return ::testing::AssertionSuccess();
  }

  /// The pieces of all ranks, in rank order.
  at::Tensor whole_of(const at::Tensor& piece, std::int64_t numel) const {
    const at::Tensor sizes = zeros(world_size_, at::kLong);
    sizes[rank_] = piece.numel();
    group_.all_reduce(sizes);
    EXPECT_EQ(sizes.sum().item<std::int64_t>(), numel);
    Tensors all;
    for (int rank = 0; rank < world_size_; ++rank) {
      at::Tensor part = at::zeros({sizes[rank].item<std::int64_t>()}, piece.options());
      if (rank == rank_) part.copy_(piece);
      group_.broadcast(part, rank);
      all.push_back(part);
    }
    return at::cat(all);
  }

  at::Tensor tokens(int step) const {
    return (at::arange(20) * (rank_ + 3) + step * 7).remainder(11);
  }
  at::Tensor targets(int step) const { return (tokens(step) * 5 + 1).remainder(11); }
};

/// A sharded net beside a plain one.
class FullyShard : public FullyShardTest {
 protected:
  /// Makes the plain net and the sharded one, which have the same values.
  struct Pair {
    ShardNet plain;
    FullySharded<ShardNetImpl> sharded;
  };
  Pair make_pair(const FullyShardOptions& options) const {
    Pair pair{ShardNet(), fully_shard(ShardNet(), options)};
    copy_values(pair.sharded, *pair.plain);
    return pair;
  }

  template <class Model>
  void backward(Model& model, int step) const {
    token_loss(model.forward(tokens(step)), targets(step)).backward();
  }

  /// The gradients of the pieces, put together, and of the replica's.
  template <class Replica>
  void expect_same_gradients(const FullySharded<ShardNetImpl>& sharded, Replica& replica) const {
    const auto pieces = sharded.named_parameters();
    const auto whole = replica->named_parameters();
    std::size_t compared = 0;
    for (const auto& [name, piece] : pieces) {
      const at::Tensor& expected = whole[name].grad();
      ASSERT_EQ(piece.grad().defined(), expected.defined()) << name;
      if (!expected.defined()) continue;
      const at::Tensor gathered = whole_of(piece.grad(), expected.numel());
      const at::Tensor flat = expected.contiguous().view(-1);
      if (sums_in_one_order()) {
        EXPECT_TRUE(at::equal(gathered, flat)) << name;
      } else {
        EXPECT_TRUE(at::allclose(gathered, flat, 1e-4, 1e-6)) << name;
      }
      ++compared;
    }
    EXPECT_GT(compared, 0U);
  }
};

}  // namespace lockstep::testing
