#include "lockstep/ddp/exchange/hooked_bucket.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <c10/core/GradMode.h>

#include "lockstep/comm/internal/native_collectives.h"
#include "lockstep/ddp/exchange/set_gradient.h"

namespace lockstep::inline internal {
namespace {

// What stands in for a sparse gradient, which is not in the bucket.
constexpr float kHoldsSparse = std::numeric_limits<float>::infinity();

}  // namespace

HookedBucket::HookedBucket(const ProcessGroup& group, const ExchangeOptions& options,
                           std::size_t number, std::vector<std::size_t> indices,
                           const std::vector<at::Tensor>& parameters)
    : GradientExchange(std::move(indices)),
      group_(group),
      hook_(options.comm_hook),
      as_view_(options.gradient_as_bucket_view),
      sum_of_squares_(options.sum_of_squares),
      flat_(group.allocate_tensor(FlatGradients::elements(parameters),
                                  FlatGradients::dtype(parameters[0]))),
      gradients_(flat_, parameters),
      bucket_{.index = number, .buffer = flat_, .parameters = parameters},
      own_holders_(parameters.size()),
      holders_(group.allocate_tensor(static_cast<std::int64_t>(parameters.size()), at::kFloat)) {
  for (std::size_t position = 0; position < gradients_.size(); ++position) {
    bucket_.gradients.push_back(gradients_.view(position));
  }
}

void HookedBucket::fill(std::size_t position, GradientScale& scale, const at::Tensor&) {
  const bool has_gradient = gradients_.fill(position, scale.get());
  const bool is_sparse = has_gradient && gradients_.parameter(position).grad().is_sparse();
  own_holders_[position] = is_sparse ? kHoldsSparse : (has_gradient ? 1 : 0);
}

void HookedBucket::leave_out(std::size_t position) {
  gradients_.clear(position);
  own_holders_[position] = 0;
}

void HookedBucket::start_average(GradientScale&) {
  const c10::NoGradGuard no_grad;
  gradients_.scale_what_was_in_place();
  const at::Tensor own = at::empty(holders_.sizes(), at::kFloat);
  std::copy(own_holders_.begin(), own_holders_.end(), own.mutable_data_ptr<float>());
  holders_.copy_(own);
  counted_ = all_reduce_into(group_, holders_, holders_, {}, {.async_op = true});
  finish_ = hook_->start(group_, bucket_);
}

void HookedBucket::finish() {
  const c10::NoGradGuard no_grad;
  std::exchange(finish_, nullptr)();
  counted_.wait();
  const at::Tensor holders = holders_.to(at::kCPU);
  for (std::size_t position = 0; position < gradients_.size(); ++position) {
    const float count = holders.const_data_ptr<float>()[position];
    // What a hook that rounds makes of zeros need not be 0.
    if (count == 0 || std::isinf(count)) gradients_.clear(position);
    if (count > 0) {
      set_gradient(gradients_.parameter(position), gradients_.view(position), as_view_);
    }
  }
  // Every rank has all of it, so that one counts it.
  if (sum_of_squares_.defined() && group_.rank() == 0) {
    const at::Tensor norm =
        at::linalg_vector_norm(flat_, 2, at::OptionalIntArrayRef(), false, at::kDouble);
    sum_of_squares_.add_(norm.square());
  }
}

}  // namespace lockstep::inline internal
