#include "lockstep/ddp/exchange/flat_gradients.h"

#include <cstring>

#include <ATen/ScalarOps.h>
#include <ATen/ops/mul.h>
#include <c10/core/GradMode.h>

#include "lockstep/ddp/exchange/gradient_view.h"

namespace lockstep::inline internal {

std::int64_t FlatGradients::elements(const std::vector<at::Tensor>& parameters) {
  std::int64_t elements = 0;
  for (const at::Tensor& parameter : parameters) elements += flat_elements(parameter);
  return elements;
}

at::ScalarType FlatGradients::dtype(const at::Tensor& parameter) {
  return c10::toRealValueType(parameter.scalar_type());
}

FlatGradients::FlatGradients(const at::Tensor& flat, const std::vector<at::Tensor>& parameters) {
  std::int64_t offset = 0;
  for (const at::Tensor& parameter : parameters) {
    slots_.push_back({parameter, gradient_view(flat, offset, parameter)});
    offset += flat_elements(parameter);
  }
}

bool FlatGradients::fill(std::size_t position, double factor) {
  const c10::NoGradGuard no_grad;
  Slot& slot = slots_[position];
  slot.factor_in_place = 1;
  // A graph that has saved a gradient of before, which is the view, is to notice.
  slot.view.unsafeGetTensorImpl()->bump_version();
  const at::Tensor& gradient = slot.parameter.grad();
  if (!gradient.defined() || gradient.is_sparse()) {
    slot.view.zero_();
    return gradient.defined();
  }
  if (is_in_place(slot)) {
    slot.factor_in_place = factor;
  } else if (gradient.device() != slot.view.device()) {
    slot.view.copy_(gradient);
    if (factor != 1) slot.view.mul_(factor);
  } else if (factor != 1) {
    // A wrapped number keeps its precision: 1/3 as bfloat16 would scale every gradient by 1.002.
    at::mul_out(slot.view, gradient, at::native::wrapped_scalar_tensor(factor));
  } else if (slot.view.scalar_type() != gradient.scalar_type() ||
             !lies_as_gradient_view(gradient, slot.parameter)) {
    slot.view.copy_(gradient);
  } else {
    std::memcpy(slot.view.mutable_data_ptr(), gradient.const_data_ptr(), gradient.nbytes());
  }
  return true;
}

void FlatGradients::clear(std::size_t position) {
  const c10::NoGradGuard no_grad;
  slots_[position].view.zero_();
}

bool FlatGradients::is_in_place(const Slot& slot) {
  const at::Tensor& gradient = slot.parameter.grad();
  return gradient.is_same(slot.view) || (gradient.scalar_type() == slot.view.scalar_type() &&
                                         lies_as_gradient_view(gradient, slot.parameter) &&
                                         gradient.const_data_ptr() == slot.view.const_data_ptr());
}

void FlatGradients::scale_what_was_in_place() {
  for (Slot& slot : slots_) {
    if (slot.factor_in_place == 1) continue;
    at::mul_out(slot.view, slot.view, at::native::wrapped_scalar_tensor(slot.factor_in_place));
    slot.factor_in_place = 1;
  }
}

}  // namespace lockstep::inline internal
