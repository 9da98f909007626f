#pragma once

#include "lockstep/ddp/comm_hook.h"

namespace lockstep {

/// Exchanges no gradients: replicas drift apart. To measure what the exchange costs.
class NoopHook final : public CommHook {
 public:
  std::string describe() const override { return "noop"; }
  bool keeps_replicas_equal() const override { return false; }
  std::function<void()> start(const ProcessGroup&, const HookBucket&) override {
    return [] {};
  }
};

}  // namespace lockstep
