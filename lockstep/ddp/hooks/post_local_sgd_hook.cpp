#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/ddp/hooks.h"

namespace lockstep {

PostLocalSgdHook::PostLocalSgdHook(const PostLocalSgdOptions& options) : options_(options) {
  if (options_.start_local_sgd_iter >= 0) return;
  throw UsageError(concat("PostLocalSgdHook: start_local_sgd_iter=", options_.start_local_sgd_iter,
                          " is negative; 0 averages in the subgroup from the first step on"));
}

std::string PostLocalSgdHook::describe() const {
  return concat("post_local_sgd from step ", options_.start_local_sgd_iter, " all-reduce ",
                options_.post_local_gradient_allreduce);
}

std::function<void()> PostLocalSgdHook::start(const ProcessGroup& group, const HookBucket& bucket) {
  if (steps_.size() <= bucket.index) steps_.resize(bucket.index + 1);
  if (steps_[bucket.index]++ < options_.start_local_sgd_iter) {
    return start_average(group, bucket.buffer);
  }
  if (!options_.post_local_gradient_allreduce || !options_.subgroup) return [] {};
  return start_average(options_.subgroup, bucket.buffer);
}

}  // namespace lockstep
