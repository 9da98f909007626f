#include "lockstep/ddp/gradient_bucket.h"

#include <cstring>

#include <ATen/ScalarOps.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <c10/core/GradMode.h>

namespace lockstep {
namespace {

// Memory as it lies, for a tensor without gaps.
at::Tensor flat_view(const at::Tensor& dense) {
  return dense.as_strided({dense.numel()}, {1});
}

// A dense parameter keeps its strides, as autograd does for its gradient; any other is contiguous.
// Made below autograd's notice: optimizers detach gradients in place, which views refuse.
at::Tensor view_like(const at::Tensor& flat, std::int64_t offset, const at::Tensor& parameter) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const at::Tensor part = flat.narrow(0, offset, parameter.numel());
  if (!parameter.is_non_overlapping_and_dense()) return part.view(parameter.sizes());
  return part.as_strided(parameter.sizes(), parameter.strides());
}

// Whether the bytes of one are the bytes of the other.
bool same_layout(const at::Tensor& gradient, const at::Tensor& view) {
  return gradient.is_cpu() && view.is_cpu() && gradient.scalar_type() == view.scalar_type() &&
         gradient.strides() == view.strides() && view.is_non_overlapping_and_dense();
}

}  // namespace

GradientBucket::GradientBucket(const ProcessGroup& group, std::vector<std::size_t> indices,
                               std::vector<at::Tensor> parameters)
    : group_(group),
      scale_(group.shares_memory() ? 1.0 : 1.0 / group.world_size()),
      indices_(std::move(indices)) {
  std::int64_t elements = 0;
  for (const at::Tensor& parameter : parameters) elements += parameter.numel();
  const auto flags = static_cast<std::int64_t>(parameters.size());
  flat_ = group.allocate_tensor(elements + flags, parameters[0].scalar_type()).zero_();
  flags_ = flat_.narrow(0, elements, flags);
  one_ = at::ones({1}, parameters[0].scalar_type());
  std::int64_t offset = 0;
  for (at::Tensor& parameter : parameters) {
    at::Tensor view = view_like(flat_, offset, parameter);
    offset += parameter.numel();
    slots_.push_back({std::move(parameter), std::move(view)});
  }
  const std::int64_t chunk_bytes = group.bucket_bytes();
  if (group.shares_memory() && slots_.size() == 1 &&
      static_cast<std::int64_t>(slots_[0].view.nbytes()) > chunk_bytes) {
    chunks_ = flat_.narrow(0, 0, elements).split(chunk_bytes / flat_.element_size());
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
  } else if (scale_ != 1 || !same_layout(gradient, slot.view)) {
    // Also where the gradient is the view itself, as after accumulation without exchange.
    // A wrapped number keeps its precision: 1/3 as bfloat16 would scale every gradient by 1.002.
    at::mul_out(slot.view, gradient, at::native::wrapped_scalar_tensor(scale_));
  } else if (!chunks_.empty()) {
    uncopied_ = gradient;
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

void GradientBucket::exchange(const at::Tensor& output, const at::Tensor& input) {
  const ReduceOp op = group_.shares_memory() ? ReduceOp::kAvg : ReduceOp::kSum;
  works_.push_back(group_.all_reduce_into(output, input, {.op = op, .async_op = true}));
}

void GradientBucket::start_average() {
  const c10::NoGradGuard no_grad;
  if (chunks_.empty()) {
    exchange(flat_, flat_);
    return;
  }
  // In the same pieces on every rank, whether it has a gradient of its own or not.
  const at::Tensor source = uncopied_.defined() ? flat_view(uncopied_) : at::Tensor();
  std::int64_t offset = 0;
  for (const at::Tensor& chunk : chunks_) {
    exchange(chunk, source.defined() ? source.narrow(0, offset, chunk.numel()) : chunk);
    offset += chunk.numel();
  }
  exchange(flags_, flags_);
}

void GradientBucket::finish() {
  for (const Work& work : works_) work.wait();
  works_.clear();
  uncopied_.reset();
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
