#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace lockstep {

/// A second interface of an optimizer whose state is sharded over ranks. Snapshots store its state
/// unsharded, and load it shard by shard.
class ShardedState {
 public:
  virtual ~ShardedState() = default;

  /// Whether this rank holds the state of a parameter of the optimizer.
  virtual bool keeps_state_of(const at::Tensor& parameter) const = 0;

  /// The state dict of the unsharded optimizer, in CPU tensors of its own: on rank `target`, or on
  /// every rank if that is empty; None elsewhere. Collective.
  /// Errors: UsageError for optimizers that snapshots do not know; else as Work::wait.
  virtual c10::IValue consolidated_state_dict(std::optional<int> target) const = 0;
};

}  // namespace lockstep
