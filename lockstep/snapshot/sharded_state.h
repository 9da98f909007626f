#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace lockstep {

/// What an optimizer is beside, of which each rank keeps a share of the state only. Snapshots store
/// such an optimizer whole and load it share by share.
class ShardedState {
 public:
  virtual ~ShardedState() = default;

  /// Whether this rank keeps the state of a parameter of the optimizer.
  virtual bool keeps_state_of(const at::Tensor& parameter) const = 0;

  /// The state dict that the same optimizer would have if it was not sharded, tensors on the CPU
  /// and shared with nothing: on rank `target`, or on every rank where it is empty; None elsewhere.
  /// Collective. Errors: UsageError for optimizers that snapshots do not know; else as Work::wait.
  virtual c10::IValue consolidated_state_dict(std::optional<int> target) const = 0;
};

}  // namespace lockstep
