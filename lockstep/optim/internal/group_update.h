#pragma once

#include <cstddef>
#include <memory>

#include <torch/optim/optimizer.h>

#include "lockstep/optim/internal/optimizer_fields.h"

namespace lockstep::inline internal {

/// One step of a parameter group: of every parameter that has a gradient, and its state, which is
/// made where there is none. Until run() nothing of the optimizer changes.
class GroupStep {
 public:
  GroupStep() = default;
  GroupStep(const GroupStep&) = delete;
  GroupStep& operator=(const GroupStep&) = delete;
  virtual ~GroupStep() = default;
  virtual void run() = 0;
  /// After run(), of all groups: updates the parameters of which ranks have one copy, of the share
  /// that ModelCopy::part() is of. May be called again for the share of a lost rank.
  virtual void run_share() = 0;
};

/// Checks the group and makes all tensors that its step needs.
/// Lifetime: the optimizer must outlive the result.
/// Errors: UsageError naming optimizer and parameter.
template <class Options>
std::unique_ptr<GroupStep> prepare_group_step(torch::optim::Optimizer& optimizer, std::size_t group,
                                              const Options& options);

}  // namespace lockstep::inline internal
