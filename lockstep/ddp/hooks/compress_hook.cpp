#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/internal/native_collectives.h"
#include "lockstep/ddp/exchange/flat_gradients.h"
#include "lockstep/ddp/hooks.h"

namespace lockstep {

CompressHook::CompressHook(at::ScalarType dtype, std::shared_ptr<CommHook> inner)
    : dtype_(dtype), inner_(std::move(inner)) {
  if (dtype != at::kHalf && dtype != at::kBFloat16) {
    throw UsageError(concat("CompressHook: dtype ", c10::toString(dtype),
                            " is neither Half nor BFloat16, in which gradients can be averaged"));
  }
  if (inner_) inner_->claim();
}

std::string CompressHook::describe() const {
  return concat("compress to ", c10::toString(dtype_), inner_ ? " for " : "",
                inner_ ? inner_->describe() : "");
}

std::function<void()> CompressHook::start(const ProcessGroup& group, const HookBucket& bucket) {
  if (!bucket.parameters.empty() && bucket.parameters.front().is_complex()) {
    return inner_ ? inner_->start(group, bucket) : start_average(group, bucket.buffer);
  }
  if (compressed_.size() <= bucket.index) compressed_.resize(bucket.index + 1);
  HookBucket& compressed = compressed_[bucket.index];
  if (!compressed.buffer.defined() || compressed.buffer.numel() != bucket.buffer.numel()) {
    compressed = {.index = bucket.index,
                  .buffer = group.allocate_tensor(bucket.buffer.numel(), dtype_),
                  .parameters = bucket.parameters};
    const FlatGradients views(compressed.buffer, bucket.parameters);
    for (std::size_t i = 0; i < views.size(); ++i) compressed.gradients.push_back(views.view(i));
  }
  std::function<void()> finish;
  if (inner_) {
    compressed.buffer.copy_(bucket.buffer);
    finish = inner_->start(group, compressed);
  } else {
    // Divided first: a sum over many ranks may be beyond what float16 holds.
    compressed.buffer.copy_(bucket.buffer.div_(group.world_size()));
    const Work work =
        all_reduce_into(group, compressed.buffer, compressed.buffer, {}, {.async_op = true});
    finish = [work] { work.wait(); };
  }
  return [finish, source = compressed.buffer, target = bucket.buffer] {
    finish();
    target.copy_(source);
  };
}

}  // namespace lockstep
