#include "lockstep/nn/tensor_parallel.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/nn/internal/group_functions.h"

namespace lockstep {
namespace {

ProcessGroup checked_group(ProcessGroup group, const char* layer) {
  group = group_or_default(std::move(group));
  if (!group) {
    throw UsageError(concat(layer, ": there is no process group; call init_process_group first"));
  }
  return group;
}

// This rank's rows (dimension 0) or columns (dimension 1) of an unsharded parameter.
at::Tensor part_of(const at::Tensor& unsharded, std::int64_t dimension, const ProcessGroup& group) {
  const Cut cut = cut_of(unsharded.size(dimension), group.rank(), group.world_size());
  return unsharded.detach()
      .narrow(dimension, cut.begin, cut.size)
      .clone(at::MemoryFormat::Contiguous);
}

void check_columns(const at::Tensor& input, std::int64_t columns, const char* layer) {
  if (input.dim() == 0 || input.size(-1) != columns) {
    throw UsageError(concat(layer, ": an input of shape ", input.sizes(),
                            "; its last dimension must be ", columns));
  }
}

}  // namespace

ColumnParallelLinearImpl::ColumnParallelLinearImpl(const torch::nn::Linear& unsharded,
                                                   const ColumnParallelLinearOptions& options)
    : group_(checked_group(options.process_group, "ColumnParallelLinear")),
      outputs_(unsharded->weight.size(0)),
      gather_output_(options.gather_output) {
  weight = register_parameter("weight", part_of(unsharded->weight, 0, group_));
  if (unsharded->bias.defined())
    bias = register_parameter("bias", part_of(unsharded->bias, 0, group_));
}

at::Tensor ColumnParallelLinearImpl::forward(const at::Tensor& input) {
  check_columns(input, weight.size(1), "ColumnParallelLinear");
  const at::Tensor output = at::linear(copy_to_group(input, group_), weight, bias);
  return gather_output_ ? gather_from_group(output, outputs_, group_) : output;
}

RowParallelLinearImpl::RowParallelLinearImpl(const torch::nn::Linear& unsharded,
                                             const RowParallelLinearOptions& options)
    : group_(checked_group(options.process_group, "RowParallelLinear")),
      inputs_(unsharded->weight.size(1)),
      input_is_parallel_(options.input_is_parallel) {
  weight = register_parameter("weight", part_of(unsharded->weight, 1, group_));
  if (unsharded->bias.defined())
    bias = register_parameter("bias", unsharded->bias.detach().clone());
}

at::Tensor RowParallelLinearImpl::forward(const at::Tensor& input) {
  // Before the cut, of which some ranks' part may happen to have the size that theirs needs.
  check_columns(input, input_is_parallel_ ? weight.size(1) : inputs_, "RowParallelLinear");
  const at::Tensor part = input_is_parallel_ ? input : split_to_group(input, group_);
  const at::Tensor sum = reduce_from_group(at::linear(part, weight), group_);
  return bias.defined() ? sum + bias : sum;
}

VocabParallelEmbeddingImpl::VocabParallelEmbeddingImpl(const torch::nn::Embedding& unsharded,
                                                       const VocabParallelEmbeddingOptions& options)
    : group_(checked_group(options.process_group, "VocabParallelEmbedding")),
      rows_(unsharded->weight.size(0)) {
  const auto& asked = unsharded->options;
  if (asked.padding_idx() || asked.max_norm() || asked.sparse() || asked.scale_grad_by_freq()) {
    throw UsageError(
        "VocabParallelEmbedding: padding_idx, max_norm, sparse and scale_grad_by_freq cannot be "
        "sharded; make the Embedding without them");
  }
  weight = register_parameter("weight", part_of(unsharded->weight, 0, group_));
}

at::Tensor VocabParallelEmbeddingImpl::forward(const at::Tensor& input) {
  if (input.numel() > 0) {
    const auto [lowest, highest] = at::aminmax(input);
    if (lowest.item<std::int64_t>() < 0 || highest.item<std::int64_t>() >= rows_) {
      throw UsageError(concat("VocabParallelEmbedding: indices from ", lowest.item<std::int64_t>(),
                              " to ", highest.item<std::int64_t>(), "; there are ", rows_,
                              " rows"));
    }
  }
  const Cut cut = cut_of(rows_, group_.rank(), group_.world_size());
  if (group_.world_size() == 1) return at::embedding(weight, input);
  // Other ranks' rows are zeros here, and their gradients end here.
  const at::Tensor is_other = input.lt(cut.begin).logical_or(input.ge(cut.begin + cut.size));
  at::Tensor rows;
  if (cut.size == 0) {
    std::vector<std::int64_t> shape = input.sizes().vec();
    shape.push_back(weight.size(1));
    rows = at::zeros(shape, weight.options()) + weight.sum();  // Which is 0: gradients end alike.
  } else {
    rows = at::embedding(weight, (input - cut.begin).masked_fill(is_other, 0))
               .masked_fill(is_other.unsqueeze(-1), 0);
  }
  return reduce_from_group(rows, group_);
}

}  // namespace lockstep
