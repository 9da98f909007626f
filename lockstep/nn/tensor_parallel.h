#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "lockstep/comm/process_group.h"

/// Layers whose weights are sharded over the ranks of a group; together they give what the
/// unsharded layer gives: tensor parallelism as Megatron-LM has it (Shoeybi et al.,
/// arXiv:1909.08053). A ColumnParallelLinear followed by a RowParallelLinear, with any function of
/// single elements between, exchanges once forward and once backward:
///
///   lockstep::ColumnParallelLinear wide(linear1, {.process_group = group});
///   lockstep::RowParallelLinear narrow(linear2, {.process_group = group});
///   auto outputs = narrow(torch::gelu(wide(inputs)));      // on every rank the same
///
/// Each layer copies its shard of an unsharded one, the same on all ranks: weights and random
/// numbers are those of the unsharded net. Sizes need not divide by the number of ranks. Gradients
/// are those of the shard; what is not sharded (a RowParallelLinear's bias, and the layers around)
/// has the same gradient on every rank, so that ranks stay equal without another exchange.
/// Gradients can be differentiated again, as for a gradient penalty. Collective: forward, backward.
/// Threads: the one that uses the group.
/// Errors: UsageError for an input of another size; else as Work::wait.
namespace lockstep {

struct ColumnParallelLinearOptions {
  /// Empty: the default group.
  ProcessGroup process_group = {};
  /// Every rank gets all outputs; otherwise its part of them, as a RowParallelLinear takes them.
  bool gather_output = false;
};

/// Linear(in, out), whose outputs are sharded. weight: [part of out, in]; bias: [part of out].
/// Input [..., in], the same on every rank; output [..., part of out], or [..., out].
class ColumnParallelLinearImpl : public torch::nn::Module {
 public:
  explicit ColumnParallelLinearImpl(const torch::nn::Linear& unsharded,
                                    const ColumnParallelLinearOptions& options = {});
  at::Tensor forward(const at::Tensor& input);

  at::Tensor weight;
  at::Tensor bias;  ///< Undefined without one.

 private:
  const ProcessGroup group_;
  const std::int64_t outputs_;
  const bool gather_output_;
};
class ColumnParallelLinear : public torch::nn::ModuleHolder<ColumnParallelLinearImpl> {
 public:
  using torch::nn::ModuleHolder<ColumnParallelLinearImpl>::ModuleHolder;
  using Impl [[maybe_unused]] = ColumnParallelLinearImpl;

  explicit ColumnParallelLinear(const torch::nn::Linear& unsharded,
                                const ColumnParallelLinearOptions& options = {})
      : ModuleHolder(std::make_shared<ColumnParallelLinearImpl>(unsharded, options)) {}
};

struct RowParallelLinearOptions {
  /// Empty: the default group.
  ProcessGroup process_group = {};
  /// The input is this rank's part, as a ColumnParallelLinear gives it; otherwise all of it.
  bool input_is_parallel = true;
};

/// Linear(in, out), whose inputs are sharded. weight: [out, part of in]; bias: [out], on every
/// rank. Input [..., part of in], or [..., in]; output [..., out], the same bits on every rank.
class RowParallelLinearImpl : public torch::nn::Module {
 public:
  explicit RowParallelLinearImpl(const torch::nn::Linear& unsharded,
                                 const RowParallelLinearOptions& options = {});
  at::Tensor forward(const at::Tensor& input);

  at::Tensor weight;
  at::Tensor bias;  ///< Undefined without one.

 private:
  const ProcessGroup group_;
  const std::int64_t inputs_;
  const bool input_is_parallel_;
};
class RowParallelLinear : public torch::nn::ModuleHolder<RowParallelLinearImpl> {
 public:
  using torch::nn::ModuleHolder<RowParallelLinearImpl>::ModuleHolder;
  using Impl [[maybe_unused]] = RowParallelLinearImpl;

  explicit RowParallelLinear(const torch::nn::Linear& unsharded,
                             const RowParallelLinearOptions& options = {})
      : ModuleHolder(std::make_shared<RowParallelLinearImpl>(unsharded, options)) {}
};

struct VocabParallelEmbeddingOptions {
  /// Empty: the default group.
  ProcessGroup process_group = {};
};

/// Embedding(num, dim), whose rows are sharded. weight: [part of num, dim]. Input: int64 or int32,
/// any shape, the same on every rank; output [..., dim], the same bits on every rank. Errors:
/// UsageError, besides, for an unsharded one with padding_idx, max_norm, sparse or
/// scale_grad_by_freq, and for an index that no rank has.
class VocabParallelEmbeddingImpl : public torch::nn::Module {
 public:
  explicit VocabParallelEmbeddingImpl(const torch::nn::Embedding& unsharded,
                                      const VocabParallelEmbeddingOptions& options = {});
  at::Tensor forward(const at::Tensor& input);

  at::Tensor weight;

 private:
  const ProcessGroup group_;
  const std::int64_t rows_;
};
class VocabParallelEmbedding : public torch::nn::ModuleHolder<VocabParallelEmbeddingImpl> {
 public:
  using torch::nn::ModuleHolder<VocabParallelEmbeddingImpl>::ModuleHolder;
  using Impl [[maybe_unused]] = VocabParallelEmbeddingImpl;

  explicit VocabParallelEmbedding(const torch::nn::Embedding& unsharded,
                                  const VocabParallelEmbeddingOptions& options = {})
      : ModuleHolder(std::make_shared<VocabParallelEmbeddingImpl>(unsharded, options)) {}
};

}  // namespace lockstep
