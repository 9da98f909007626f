#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// Sums over ranks of a few numbers that go beside the gradients of a step: under way while
/// backward runs, so that nobody waits for them. Threads: one at a time.
class StepTotals {
 public:
  explicit StepTotals(ProcessGroup group) : group_(std::move(group)) {}

  /// Every rank gives as many numbers, at the same point between its collectives.
  void start(const std::vector<double>& own);

  /// Waits for them. Errors: as Work::wait.
  const std::vector<double>& get();

 private:
  ProcessGroup group_;
  at::Tensor tensor_;
  Work work_;
  bool is_under_way_ = false;
  std::vector<double> totals_;
};

}  // namespace lockstep
