#include "lockstep/ddp/exchange/gradient_view.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/view_as_complex.h>

namespace lockstep::inline internal {

at::Tensor flat_view(const at::Tensor& dense) {
  return dense.as_strided({dense.numel()}, {1});
}

std::int64_t flat_elements(const at::Tensor& parameter) {
  return parameter.numel() * (parameter.is_complex() ? 2 : 1);
}

at::Tensor gradient_view(const at::Tensor& flat, std::int64_t offset, const at::Tensor& parameter) {
  // Below autograd's notice: detaching in place is refused to what it knows as a view.
  const at::AutoDispatchBelowADInplaceOrView guard;
  at::Tensor part = flat.narrow(0, offset, flat_elements(parameter));
  if (parameter.is_complex()) part = at::view_as_complex(part.view({parameter.numel(), 2}));
  if (!parameter.is_non_overlapping_and_dense()) return part.view(parameter.sizes());
  return part.as_strided(parameter.sizes(), parameter.strides());
}

bool lies_as_gradient_view(const at::Tensor& gradient, const at::Tensor& parameter) {
  if (!gradient.is_cpu() || !parameter.is_cpu() ||
      gradient.scalar_type() != parameter.scalar_type()) {
    return false;
  }
  return parameter.is_non_overlapping_and_dense() ? gradient.strides() == parameter.strides()
                                                  : gradient.is_contiguous();
}

}  // namespace lockstep::inline internal
