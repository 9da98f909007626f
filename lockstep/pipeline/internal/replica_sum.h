#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"

namespace lockstep::inline internal {

/// What ranks have in common that hold the same stages and train them on other samples.
/// Threads: one. Collective. Errors: as Work::wait; UsageError for sparse gradients.
class ReplicaSum {
 public:
  /// Rank 0's parameters and buffers become all ranks'. An empty group: of this process alone.
  ReplicaSum(ProcessGroup group, std::vector<at::Tensor> parameters,
             const std::vector<at::Tensor>& buffers);

  double sum(double value) const;
  /// Puts aside what earlier steps left in .grad: it is a sum already.
  void begin_step();
  /// Adds to .grad the sum over the ranks of the gradients since begin_step(), the same bits on
  /// all. What no rank has a gradient of has none afterwards, or the one from before.
  void sum_gradients();

 private:
  ProcessGroup group_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> earlier_;  // one a parameter, or undefined
};

}  // namespace lockstep::inline internal
