#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "lockstep/comm/process_group.h"

/// Tensor parallelism: layers with weights that are sharded over the ranks of a group, and the
/// results of the unsharded layers. A ColumnParallelLinear followed by a RowParallelLinear, with an
/// elementwise function in between, communicates once in forward and once in backward:
///
/// ```cpp
/// lockstep::ColumnParallelLinear wide(linear1, {.process_group = group});
/// lockstep::RowParallelLinear narrow(linear2, {.process_group = group});
/// auto outputs = narrow(torch::gelu(wide(inputs)));  // equal on every rank
/// ```
///
/// Each layer copies its shard of an unsharded layer, which must be equal on all ranks. So weights
/// and random numbers are those of the unsharded model. Sizes need not be multiples of the number
/// of ranks. Gradients are those of the shard. Parameters that are not sharded (a
/// RowParallelLinear's bias, other layers) get the same gradient on every rank, so ranks stay equal
/// without another exchange. Double backward works, as for a gradient penalty. Collective: forward,
/// backward.
///
/// Source: Megatron-LM (Shoeybi et al., arXiv:1909.08053).
/// Threads: the thread that uses the group.
/// Errors: UsageError for an input of another size; else as Work::wait.
namespace lockstep {

/// Options of ColumnParallelLinear.
struct ColumnParallelLinearOptions {
  /// Empty: the default group.
  ProcessGroup process_group = {};
  /// Gather the output: all of it on every rank. False: this rank's part, as RowParallelLinear
  /// takes it.
  bool gather_output = false;
};

/// Linear(in, out) with sharded outputs.
/// Parameters: weight [part of out, in], bias [part of out].
/// Input: [..., in], equal on every rank.
/// Output: [..., part of out], or with gather_output [..., out].
class ColumnParallelLinearImpl : public torch::nn::Module {
 public:
  explicit ColumnParallelLinearImpl(const torch::nn::Linear& unsharded,
                                    const ColumnParallelLinearOptions& options = {});
  /// Maps [..., in] to [..., part of out] or [..., out].
  at::Tensor forward(const at::Tensor& input);

  at::Tensor weight;
  at::Tensor bias;  ///< undefined if the unsharded layer has none

 private:
  const ProcessGroup group_;
  const std::int64_t outputs_;
  const bool gather_output_;
};
/// Holder of a ColumnParallelLinearImpl.
class ColumnParallelLinear : public torch::nn::ModuleHolder<ColumnParallelLinearImpl> {
 public:
  using torch::nn::ModuleHolder<ColumnParallelLinearImpl>::ModuleHolder;
  /// The module's class, as in LibTorch's holders.
  using Impl [[maybe_unused]] = ColumnParallelLinearImpl;

  explicit ColumnParallelLinear(const torch::nn::Linear& unsharded,
                                const ColumnParallelLinearOptions& options = {})
      : ModuleHolder(std::make_shared<ColumnParallelLinearImpl>(unsharded, options)) {}
};

/// Options of RowParallelLinear.
struct RowParallelLinearOptions {
  /// Empty: the default group.
  ProcessGroup process_group = {};
  /// The input is this rank's part, as ColumnParallelLinear returns it. False: all of it.
  bool input_is_parallel = true;
};

/// Linear(in, out) with sharded inputs.
/// Parameters: weight [out, part of in]; bias [out], the same on every rank.
/// Input: [..., part of in], or without input_is_parallel [..., in].
/// Output: [..., out], the same bits on every rank.
class RowParallelLinearImpl : public torch::nn::Module {
 public:
  explicit RowParallelLinearImpl(const torch::nn::Linear& unsharded,
                                 const RowParallelLinearOptions& options = {});
  /// Maps [..., part of in] or [..., in] to [..., out].
  at::Tensor forward(const at::Tensor& input);

  at::Tensor weight;
  at::Tensor bias;  ///< undefined if the unsharded layer has none

 private:
  const ProcessGroup group_;
  const std::int64_t inputs_;
  const bool input_is_parallel_;
};
/// Holder of a RowParallelLinearImpl.
class RowParallelLinear : public torch::nn::ModuleHolder<RowParallelLinearImpl> {
 public:
  using torch::nn::ModuleHolder<RowParallelLinearImpl>::ModuleHolder;
  /// The module's class, as in LibTorch's holders.
  using Impl [[maybe_unused]] = RowParallelLinearImpl;

  explicit RowParallelLinear(const torch::nn::Linear& unsharded,
                             const RowParallelLinearOptions& options = {})
      : ModuleHolder(std::make_shared<RowParallelLinearImpl>(unsharded, options)) {}
};

/// Options of VocabParallelEmbedding.
struct VocabParallelEmbeddingOptions {
  /// Empty: the default group.
  ProcessGroup process_group = {};
};

/// Embedding(num, dim) with sharded rows.
/// Parameter: weight [part of num, dim].
/// Input: int64 or int32, any shape, equal on every rank.
/// Output: [..., dim], the same bits on every rank.
/// Errors: also UsageError for an unsharded layer with padding_idx, max_norm, sparse or
/// scale_grad_by_freq, and for an index outside [0, num).
class VocabParallelEmbeddingImpl : public torch::nn::Module {
 public:
  explicit VocabParallelEmbeddingImpl(const torch::nn::Embedding& unsharded,
                                      const VocabParallelEmbeddingOptions& options = {});
  /// Maps indices [...] to [..., dim].
  at::Tensor forward(const at::Tensor& input);

  at::Tensor weight;

 private:
  const ProcessGroup group_;
  const std::int64_t rows_;
};
/// Holder of a VocabParallelEmbeddingImpl.
class VocabParallelEmbedding : public torch::nn::ModuleHolder<VocabParallelEmbeddingImpl> {
 public:
  using torch::nn::ModuleHolder<VocabParallelEmbeddingImpl>::ModuleHolder;
  /// The module's class, as in LibTorch's holders.
  using Impl [[maybe_unused]] = VocabParallelEmbeddingImpl;

  explicit VocabParallelEmbedding(const torch::nn::Embedding& unsharded,
                                  const VocabParallelEmbeddingOptions& options = {})
      : ModuleHolder(std::make_shared<VocabParallelEmbeddingImpl>(unsharded, options)) {}
};

}  // namespace lockstep
