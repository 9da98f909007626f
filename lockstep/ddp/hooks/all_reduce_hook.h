#pragma once

#include "lockstep/ddp/comm_hook.h"

namespace lockstep {

/// What DistributedDataParallel does without a hook, through the interface of hooks: for
/// comparison, and as the inner hook of others.
class AllReduceHook final : public CommHook {
 public:
  std::string describe() const override { return "all_reduce"; }
  std::function<void()> start(const ProcessGroup& group, const HookBucket& bucket) override {
    return start_average(group, bucket.buffer);
  }
};

}  // namespace lockstep
