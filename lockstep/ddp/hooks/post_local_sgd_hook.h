#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/ddp/comm_hook.h"

namespace lockstep {

/// Names and defaults are those of torch.distributed's PostLocalSGDState.
struct PostLocalSgdOptions {
  /// From this step on gradients are averaged in the subgroup only; 0: from the first.
  std::int64_t start_local_sgd_iter = 0;
  /// Whether gradients are averaged in the subgroup at all.
  bool post_local_gradient_allreduce = true;
  /// Ranks that stay in step with each other, such as those of one machine. Empty: this rank alone.
  ProcessGroup subgroup = {};
};

/// Post-local SGD (Lin et al., ICLR 2020): averages gradients over all ranks at first, then among
/// few or none, while a PeriodicModelAverager averages the parameters from time to time. Between
/// two such averages replicas differ.
class PostLocalSgdHook final : public CommHook {
 public:
  /// Errors: UsageError for a negative start_local_sgd_iter.
  explicit PostLocalSgdHook(const PostLocalSgdOptions& options);

  std::string describe() const override;
  bool keeps_replicas_equal() const override { return false; }
  std::function<void()> start(const ProcessGroup& group, const HookBucket& bucket) override;

 private:
  PostLocalSgdOptions options_;
  std::vector<std::int64_t> steps_;  // of each bucket
};

}  // namespace lockstep
