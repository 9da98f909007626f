#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"

namespace torch::optim {
class Optimizer;
}

namespace lockstep {

/// Replicas are no longer bit-identical. what(), the same on every rank, names the ranks and the
/// tensors that differ.
class ReplicaDrift : public Error {
 public:
  using Error::Error;
  const char* name() const noexcept override { return "ReplicaDrift"; }
};

/// A tensor with its name for errors.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// Checks that the tensors have the same names, dtypes, shapes and bits on every rank (a NaN equals
/// a NaN of the same bits). Collective. Tensors may have any dtype, strides and device, but must
/// have storage; a non-contiguous tensor, or one on a device, is copied, one at a time.
///
///     check_replicas_agree(group, {{"weights", weights}, {"step", step}});
///
/// Cost: one pass of XXH3 over the tensors, at memory bandwidth, and one message of 8 bytes per
/// rank. Only on a mismatch ranks exchange a 64-bit hash per tensor. A group of one rank does
/// nothing. For a model use DistributedDataParallel::check_replicas_agree.
/// Threads: one at a time.
/// Errors: ReplicaDrift, the same on every rank: the ranks that differ from the majority (without
/// one: from rank 0), the first tensor of each that differs, and how many do; else see Work::wait.
void check_replicas_agree(const ProcessGroup& group, const std::vector<NamedTensor>& tensors);

/// Compares the optimizer's state and options too: "momentum_buffer of fc.weight", "lr of parameter
/// group 0". Names of its parameters come from `tensors`. Of a ShardedOptimizer, whose state
/// differs per rank, only the options.
/// Errors: UsageError for other optimizers than LibTorch's SGD, Adam, AdamW, RMSprop and Adagrad
/// and those of optim/optimizers.h.
void check_replicas_agree(const ProcessGroup& group, const std::vector<NamedTensor>& tensors,
                          const torch::optim::Optimizer& optimizer);

}  // namespace lockstep
