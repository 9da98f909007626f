#pragma once

#include <memory>
#include <vector>

#include <c10/core/ScalarType.h>

#include "lockstep/ddp/comm_hook.h"

namespace lockstep {

/// Gradients travel in 16 bits: they are divided by the number of ranks, rounded, and averaged in
/// that dtype by another hook. Counterpart of PyTorch's fp16_compress_hook, bf16_compress_hook and
/// their wrappers. Complex gradients, which bfloat16 cannot hold, go to the other hook, or the
/// all-reduce, as they are. Where nothing is to be wrapped the option exchange_dtype costs less: it
/// converts in the passes that copy and average.
class CompressHook final : public CommHook {
 public:
  /// `dtype`: kHalf or kBFloat16. `inner` averages what is compressed; null: an all-reduce.
  /// Errors: UsageError for another dtype, and for an `inner` that serves elsewhere.
  explicit CompressHook(at::ScalarType dtype, std::shared_ptr<CommHook> inner = nullptr);

  std::string describe() const override;
  bool keeps_replicas_equal() const override { return !inner_ || inner_->keeps_replicas_equal(); }
  std::function<void()> start(const ProcessGroup& group, const HookBucket& bucket) override;

 private:
  at::ScalarType dtype_;
  std::shared_ptr<CommHook> inner_;
  std::vector<HookBucket> compressed_;  // by number
};

}  // namespace lockstep
