#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"

namespace lockstep::inline internal {

/// Data parallelism of a pipeline: ranks that hold the same stages and train them on different
/// samples. All functions are collective.
/// Threads: one.
/// Errors: as Work::wait; UsageError for sparse gradients.
class ReplicaSum {
 public:
  /// Broadcasts rank 0's parameters and buffers. An empty group: this process alone.
  ReplicaSum(ProcessGroup group, std::vector<at::Tensor> parameters,
             const std::vector<at::Tensor>& buffers);

  double sum(double value) const;
  /// Puts aside gradients of earlier steps in .grad, which are already sums.
  void begin_step();
  /// Sums the gradients since begin_step() over the ranks and adds them to .grad, with the same
  /// bits on all ranks. A parameter for which no rank has a gradient keeps its earlier gradient, or
  /// none.
  void sum_gradients();

 private:
  ProcessGroup group_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> earlier_;  // one a parameter, or undefined
};

}  // namespace lockstep::inline internal
