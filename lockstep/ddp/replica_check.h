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

/// Replicas that were bit-identical are no longer. The message, the same on every rank, names the
/// ranks and what differs.
class ReplicaDrift : public Error {
 public:
  using Error::Error;
  const char* name() const noexcept override { return "ReplicaDrift"; }
};

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// Returns when the tensors have the same names, dtypes, shapes and bits on every rank (a NaN
/// equals one of the same bits). Collective. Any tensors with memory: of any dtype, strides and
/// device; those that are not contiguous, and those of devices, are copied, one at a time.
///
///   check_replicas_agree(group, {{"weights", weights}, {"step", step}});
///
/// It costs one pass of XXH3 over the tensors, at the speed of memory, and one message of 8 bytes
/// a rank; hashes of 64 bits of single tensors travel only where ranks differ. In a group of one
/// rank it does nothing. DistributedDataParallel::check_replicas_agree does it for a model.
/// Threads: one at a time. Errors: ReplicaDrift, the same on every rank, naming the ranks that
/// differ from most others (where there is no most: from rank 0), the first tensor of each that
/// does, and how many do; else as Work::wait.
void check_replicas_agree(const ProcessGroup& group, const std::vector<NamedTensor>& tensors);

/// Compares the state and the settings of the optimizer, too: "momentum_buffer of fc.weight", "lr
/// of parameter group 0"; its parameters by their names in `tensors`. Of a ShardedOptimizer, of
/// which each rank has a state of its own, only the settings. Errors: UsageError for optimizers
/// other than LibTorch's SGD, Adam, AdamW, RMSprop and Adagrad and those of optim/optimizers.h.
void check_replicas_agree(const ProcessGroup& group, const std::vector<NamedTensor>& tensors,
                          const torch::optim::Optimizer& optimizer);

}  // namespace lockstep
