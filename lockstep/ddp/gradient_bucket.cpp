#include "lockstep/ddp/gradient_bucket.h"

#include <cstring>

#include <ATen/ScalarOps.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <c10/core/GradMode.h>

#include "lockstep/ddp/gradient_view.h"

namespace lockstep {

GradientBucket::GradientBucket(const ProcessGroup& group, std::vector<std::size_t> indices,
                               std::vector<at::Tensor> parameters)
    : GradientExchange(std::move(indices)),
      group_(group),
      scale_(group.shares_memory() ? 1.0 : 1.0 / group.world_size()) {
  std::int64_t elements = 0;
  for (const at::Tensor& parameter : parameters) elements += parameter.numel();
  const auto flags = static_cast<std::int64_t>(parameters.size());
  flat_ = group.allocate_tensor(elements + flags, parameters[0].scalar_type()).zero_();
  flags_ = flat_.narrow(0, elements, flags);
  one_ = at::ones({1}, parameters[0].scalar_type());
  std::int64_t offset = 0;
  for (at::Tensor& parameter : parameters) {
    at::Tensor view = gradient_view(flat_, offset, parameter);
    offset += parameter.numel();
    slots_.push_back({std::move(parameter), std::move(view)});
  }
}

void GradientBucket::fill(std::size_t position) {
  const c10::NoGradGuard no_grad;
  Slot& slot = slots_[position];
  const at::Tensor& gradient = slot.parameter.grad();
  slot.has_gradient = gradient.defined();
  set_flag(position, slot.has_gradient);
  if (!slot.has_gradient) {
    slot.view.zero_();
  } else if (scale_ != 1 || !lies_as_gradient_view(gradient, slot.parameter)) {
    // Also where the gradient is the view itself, as after accumulation without exchange.
    // A wrapped number keeps its precision: 1/3 as bfloat16 would scale every gradient by 1.002.
    at::mul_out(slot.view, gradient, at::native::wrapped_scalar_tensor(scale_));
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

void GradientBucket::start_average() {
  const c10::NoGradGuard no_grad;
  const ReduceOp op = group_.shares_memory() ? ReduceOp::kAvg : ReduceOp::kSum;
  work_ = group_.all_reduce_into(flat_, flat_, {.op = op, .async_op = true});
}

void GradientBucket::finish() {
  work_.wait();
  work_ = {};
  at::Tensor flags;  // Fetched only where a gradient is missing: on CUDA that waits for the device.
  for (std::size_t position = 0; position < slots_.size(); ++position) {
    Slot& slot = slots_[position];
    if (!slot.has_gradient) {
      if (!flags.defined()) flags = flags_.to(at::kCPU, at::kDouble);
      if (flags.const_data_ptr<double>()[position] == 0) continue;
    }
    slot.parameter.mutable_grad() = slot.view;
  }
}

}  // namespace lockstep
