#include "lockstep/ddp/gradient_bucket.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

namespace lockstep {
namespace {

// A dense parameter keeps its strides, as autograd does for its gradient; any other is contiguous.
// Made below autograd's notice: optimizers detach gradients in place, which views refuse.
at::Tensor view_like(const at::Tensor& flat, std::int64_t offset, const at::Tensor& parameter) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const at::Tensor part = flat.narrow(0, offset, parameter.numel());
  if (!parameter.is_non_overlapping_and_dense()) return part.view(parameter.sizes());
  return part.as_strided(parameter.sizes(), parameter.strides());
}

}  // namespace

GradientBucket::GradientBucket(std::vector<std::size_t> indices, std::vector<at::Tensor> parameters)
    : indices_(std::move(indices)) {
  std::int64_t elements = 0;
  for (const at::Tensor& parameter : parameters) elements += parameter.numel();
  const auto flags = static_cast<std::int64_t>(parameters.size());
  flat_ = at::zeros({elements + flags}, parameters[0].options().requires_grad(false));
  flags_ = flat_.narrow(0, elements, flags);
  std::int64_t offset = 0;
  for (at::Tensor& parameter : parameters) {
    at::Tensor view = view_like(flat_, offset, parameter);
    offset += parameter.numel();
    slots_.push_back({std::move(parameter), std::move(view)});
  }
}

void GradientBucket::fill(std::size_t position, double scale) {
  const c10::NoGradGuard no_grad;
  Slot& slot = slots_[position];
  const at::Tensor& gradient = slot.parameter.grad();
  slot.has_gradient = gradient.defined();
  if (slot.has_gradient) {
    // Also where the gradient is the view itself, as after accumulation without exchange.
    // A wrapped number keeps its precision: 1/3 as bfloat16 would scale every gradient by 1.002.
    at::mul_out(slot.view, gradient, at::native::wrapped_scalar_tensor(scale));
  } else {
    slot.view.zero_();
  }
}

void GradientBucket::start_sum(const ProcessGroup& group) {
  const c10::NoGradGuard no_grad;
  flags_.fill_(1);
  for (std::size_t position = 0; position < slots_.size(); ++position) {
    if (!slots_[position].has_gradient) flags_[static_cast<std::int64_t>(position)].zero_();
  }
  sum_ = group.all_reduce(flat_, {.async_op = true});
}

void GradientBucket::finish() {
  sum_.wait();
  sum_ = {};
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
