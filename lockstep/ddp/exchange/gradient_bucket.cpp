#include "lockstep/ddp/exchange/gradient_bucket.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <c10/core/GradMode.h>

#include "lockstep/comm/internal/native_collectives.h"
#include "lockstep/ddp/exchange/set_gradient.h"

namespace lockstep::inline internal {
namespace {

// Flags are scaled as gradients are: a number would underflow in float16 at a weight of 3e7 in all.
constexpr double kMark = std::numeric_limits<double>::infinity();

}  // namespace

GradientBucket::GradientBucket(const ProcessGroup& group, const ExchangeOptions& options,
                               std::vector<std::size_t> indices,
                               const std::vector<at::Tensor>& parameters)
    : GradientExchange(std::move(indices)),
      group_(group),
      name_(options.name),
      shares_memory_(group.shares_memory()),
      as_view_(options.gradient_as_bucket_view),
      elements_(FlatGradients::elements(parameters)),
      sum_of_squares_(options.sum_of_squares),
      has_gradient_(parameters.size()),
      is_marked_(parameters.size()) {
  const auto flags = static_cast<std::int64_t>(parameters.size());
  flat_ = group.allocate_tensor(elements_ + flags, FlatGradients::dtype(parameters[0])).zero_();
  views_.emplace_back(flat_, parameters);
  sent_ = flat_;
  if (options.converts(parameters[0])) {
    sent_ = group.allocate_tensor(elements_ + flags, *options.dtype).zero_();
    views_.emplace_back(sent_, parameters);
  }
  flags_ = sent_.narrow(0, elements_, flags);
  mark_ = at::full({1}, kMark, sent_.scalar_type());
}

void GradientBucket::fill(std::size_t position, GradientScale& scale, const at::Tensor&) {
  // Where memory is shared the pass that averages divides, and scales what it can.
  const double factor = shares_memory_ ? scale.of_own() : scale.get() / group_.world_size();
  has_gradient_[position] = views_.back().fill(position, factor);
  set_flag(position, has_gradient_[position]);
}

void GradientBucket::leave_out(std::size_t position) {
  for (FlatGradients& views : views_) views.clear(position);
  has_gradient_[position] = false;
  set_flag(position, false);
}

void GradientBucket::set_flag(std::size_t position, bool flag) {
  if (!flags_.is_cpu()) {
    // What is added to a mark leaves it one: on a device, where each write is a kernel, it stays.
    if (flag && is_marked_[position]) return;
    flags_[static_cast<std::int64_t>(position)].fill_(flag ? kMark : 0);
    is_marked_[position] = flag;
    return;
  }
  // A dispatched operation would cost more than the gradient of a small layer.
  const auto bytes = static_cast<std::size_t>(flags_.element_size());
  auto* const target = static_cast<std::byte*>(flags_.mutable_data_ptr()) + position * bytes;
  if (flag) {
    std::memcpy(target, mark_.const_data_ptr(), bytes);
  } else {
    std::memset(target, 0, bytes);
  }
}

void GradientBucket::exchange(const at::Tensor& output, const at::Tensor& input, double scale,
                              const at::Tensor& squares) {
  const ReduceOp op = shares_memory_ ? ReduceOp::kAvg : ReduceOp::kSum;
  works_.push_back(all_reduce_into(group_, output, input,
                                   {.op = op, .scale = scale, .sum_of_squares = squares},
                                   {.async_op = true, .name = name_}));
}

void GradientBucket::start_average(GradientScale& scale) {
  const c10::NoGradGuard no_grad;
  views_.back().scale_what_was_in_place();
  if (!shares_memory_) return exchange(sent_, sent_, 1, {});
  if (!sum_of_squares_.defined()) return exchange(flat_, sent_, scale.of_average(), {});
  // Flags are no gradients: their squares would count.
  exchange(flat_.narrow(0, 0, elements_), sent_.narrow(0, 0, elements_), scale.of_average(),
           sum_of_squares_);
  exchange(flat_.narrow(0, elements_, flags_.numel()), flags_, 1, {});
}

void GradientBucket::add_own_share_of_squares() {
  // Gradients are the same on all ranks by now, so that any rank may count any of them.
  const std::int64_t begin = elements_ * group_.rank() / group_.world_size();
  const std::int64_t end = elements_ * (group_.rank() + 1) / group_.world_size();
  const at::Tensor norm = at::linalg_vector_norm(flat_.narrow(0, begin, end - begin), 2,
                                                 at::OptionalIntArrayRef(), false, at::kDouble);
  sum_of_squares_.add_(norm.square());
}

bool GradientBucket::is_averaged() const {
  return std::all_of(works_.begin(), works_.end(),
                     [](const Work& work) { return work.is_completed(); });
}

void GradientBucket::finish() {
  for (const Work& work : works_) work.wait();
  works_.clear();
  if (!shares_memory_) {
    const c10::NoGradGuard no_grad;
    if (!sent_.is_same(flat_)) flat_.copy_(sent_);
    if (sum_of_squares_.defined()) add_own_share_of_squares();
  }
  at::Tensor flags;  // Fetched only where a gradient is missing: on CUDA that waits for the device.
  const FlatGradients& gradients = views_.front();
  for (std::size_t position = 0; position < gradients.size(); ++position) {
    if (!has_gradient_[position]) {
      if (!flags.defined()) {
        flags = flat_.narrow(0, elements_, flags_.numel()).to(at::kCPU, at::kDouble);
      }
      if (flags.const_data_ptr<double>()[position] == 0) continue;
    }
    set_gradient(gradients.parameter(position), gradients.view(position), as_view_);
  }
}

}  // namespace lockstep::inline internal
