#pragma once

#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/optim/internal/parameter_exchange.h"
#include "lockstep/optim/internal/shard_plan.h"

namespace torch::optim {
class Optimizer;
}

namespace lockstep {

struct ShardedOptimizerOptions {
  /// Empty: the default group.
  ProcessGroup process_group = {};
  /// Move the parameters one behind the other into memory that the group exchanges as it is (shared
  /// memory where the group has it), so that step() copies nothing but from rank to rank. Storage
  /// changes hands: not for parameters of which the program keeps views.
  bool parameters_as_bucket_view = false;
};

/// The part of ShardedOptimizer that does not depend on the optimizer's type.
/// Threads, lifetime, errors: as ShardedOptimizer.
class OptimizerShards {
 public:
  OptimizerShards(torch::optim::Optimizer& optimizer, const ShardedOptimizerOptions& options);

  /// Plans the groups that were added since the last call. Collective when there are some.
  void plan(torch::optim::Optimizer& optimizer);

  /// Runs `step_own`, to which the optimizer's groups show this rank's parameters only, and
  /// exchanges what came of it.
  void step(torch::optim::Optimizer& optimizer, const std::function<void()>& step_own);

  bool keeps_state_of(const at::Tensor& parameter) const;
  c10::IValue consolidated_state_dict(const torch::optim::Optimizer& optimizer,
                                      std::optional<int> target) const;
  [[noreturn]] void refuse_archive() const;

  const ProcessGroup& process_group() const { return group_; }

 private:
  void check_planned_groups(const torch::optim::Optimizer& optimizer) const;
  void drop_states_of_others(torch::optim::Optimizer& optimizer) const;
  void plan_exchange();

  ProcessGroup group_;
  bool parameters_as_bucket_view_;
  /// Every parameter once, in the order of the groups, and where it is by its address.
  std::vector<OwnedParameter> parameters_;
  std::unordered_map<const void*, std::size_t> places_;
  /// Of each planned group the addresses of its parameters, and what the plan was made of: those
  /// that no group before had.
  std::vector<std::vector<const void*>> planned_;
  std::vector<std::vector<ShardCandidate>> candidates_;
  /// Which parameters the exchange covers.
  std::vector<bool> exchanged_;
  std::optional<ParameterExchange> exchange_;
};

}  // namespace lockstep
