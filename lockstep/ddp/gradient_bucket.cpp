#include "lockstep/ddp/gradient_bucket.h"

#include <cstring>

#include <ATen/ScalarOps.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <c10/core/GradMode.h>

#include "lockstep/ddp/gradient_view.h"

namespace lockstep {

GradientBucket::GradientBucket(const ProcessGroup& group, const ExchangeOptions& options,
                               std::vector<std::size_t> indices, std::vector<at::Tensor> parameters)
    : GradientExchange(std::move(indices)),
      group_(group),
      shares_memory_(group.shares_memory()),
      scale_(shares_memory_ ? 1.0 : 1.0 / group.world_size()),
      sum_of_squares_(options.sum_of_squares) {
  for (const at::Tensor& parameter : parameters) elements_ += parameter.numel();
  const auto flags = static_cast<std::int64_t>(parameters.size());
  const at::ScalarType dtype = parameters[0].scalar_type();
  flat_ = group.allocate_tensor(elements_ + flags, dtype).zero_();
  sent_ = flat_;
  if (dtype == at::kFloat && options.dtype) {
    sent_ = group.allocate_tensor(elements_ + flags, *options.dtype).zero_();
  }
  flags_ = sent_.narrow(0, elements_, flags);
  one_ = at::ones({1}, sent_.scalar_type());
  std::int64_t offset = 0;
  for (at::Tensor& parameter : parameters) {
    at::Tensor view = gradient_view(flat_, offset, parameter);
    at::Tensor sent = sent_.is_same(flat_) ? view : gradient_view(sent_, offset, parameter);
    offset += parameter.numel();
    slots_.push_back({std::move(parameter), std::move(view), std::move(sent)});
  }
}

void GradientBucket::fill(std::size_t position) {
  const c10::NoGradGuard no_grad;
  Slot& slot = slots_[position];
  const at::Tensor& gradient = slot.parameter.grad();
  slot.has_gradient = gradient.defined();
  set_flag(position, slot.has_gradient);
  if (!slot.has_gradient) {
    slot.sent.zero_();
  } else if (scale_ != 1) {
    // Also where the gradient is the view itself, as after accumulation without exchange.
    // A wrapped number keeps its precision: 1/3 as bfloat16 would scale every gradient by 1.002.
    at::mul_out(slot.sent, gradient, at::native::wrapped_scalar_tensor(scale_));
  } else if (!sent_.is_same(flat_) || !lies_as_gradient_view(gradient, slot.parameter)) {
    slot.sent.copy_(gradient);
  } else if (gradient.const_data_ptr() != slot.view.const_data_ptr()) {
    std::memcpy(slot.view.mutable_data_ptr(), gradient.const_data_ptr(), gradient.nbytes());
  }
}

void GradientBucket::set_flag(std::size_t position, bool flag) {
  if (!flags_.is_cpu()) {
    flags_[static_cast<std::int64_t>(position)].fill_(flag ? 1 : 0);
    return;
  }
  // A dispatched operation would cost more than the gradient of a small layer.
  const auto bytes = static_cast<std::size_t>(flags_.element_size());
  auto* const target = static_cast<std::byte*>(flags_.mutable_data_ptr()) + position * bytes;
  if (flag) {
    std::memcpy(target, one_.const_data_ptr(), bytes);
  } else {
    std::memset(target, 0, bytes);
  }
}

void GradientBucket::exchange(const at::Tensor& output, const at::Tensor& input,
                              const at::Tensor& squares) {
  const ReduceOp op = shares_memory_ ? ReduceOp::kAvg : ReduceOp::kSum;
  works_.push_back(group_.all_reduce_into(output, input,
                                          {.op = op, .async_op = true, .sum_of_squares = squares}));
}

void GradientBucket::start_average() {
  const c10::NoGradGuard no_grad;
  const at::Tensor& output = shares_memory_ ? flat_ : sent_;
  if (!shares_memory_ || !sum_of_squares_.defined()) {
    exchange(output, sent_, {});
    return;
  }
  // Flags are no gradients: their squares would count.
  exchange(output.narrow(0, 0, elements_), sent_.narrow(0, 0, elements_), sum_of_squares_);
  exchange(output.narrow(0, elements_, flags_.numel()), flags_, {});
}

void GradientBucket::add_own_share_of_squares() {
  // Gradients are the same on all ranks by now, so that any rank may count any of them.
  const std::int64_t begin = elements_ * group_.rank() / group_.world_size();
  const std::int64_t end = elements_ * (group_.rank() + 1) / group_.world_size();
  const at::Tensor norm = at::linalg_vector_norm(flat_.narrow(0, begin, end - begin), 2,
                                                 at::OptionalIntArrayRef(), false, at::kDouble);
  sum_of_squares_.add_(norm.square());
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
  for (std::size_t position = 0; position < slots_.size(); ++position) {
    Slot& slot = slots_[position];
    if (!slot.has_gradient) {
      if (!flags.defined()) {
        flags = flat_.narrow(0, elements_, flags_.numel()).to(at::kCPU, at::kDouble);
      }
      if (flags.const_data_ptr<double>()[position] == 0) continue;
    }
    slot.parameter.mutable_grad() = slot.view;
  }
}

}  // namespace lockstep
