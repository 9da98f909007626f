#pragma once

#include <cstddef>
#include <memory>

#include <torch/optim/optimizer.h>

#include "lockstep/optim/internal/optimizer_fields.h"

namespace lockstep::inline internal {

/// One step of a parameter group: updates every parameter with a gradient, and its state, which is
/// created if missing. Before run() the optimizer is unchanged.
class GroupStep {
 public:
  GroupStep() = default;
  GroupStep(const GroupStep&) = delete;
  GroupStep& operator=(const GroupStep&) = delete;
  virtual ~GroupStep() = default;
  virtual void run() = 0;
  /// After run() of all groups: updates the shard that ModelCopy::part() returns, of parameters in
  /// one copy per machine. May be called again for a lost rank's shard.
  virtual void run_shard() = 0;
};

/// Checks the group and creates all tensors that its step needs.
/// Lifetime: the optimizer must outlive the result.
/// Errors: UsageError with optimizer and parameter.
template <class Options>
std::unique_ptr<GroupStep> prepare_group_step(torch::optim::Optimizer& optimizer, std::size_t group,
                                              const Options& options);

}  // namespace lockstep::inline internal
