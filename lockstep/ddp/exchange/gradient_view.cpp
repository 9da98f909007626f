#include "lockstep/ddp/exchange/gradient_view.h"

#include <cstddef>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/view_as_complex.h>
#include <c10/core/GradMode.h>

namespace lockstep::inline internal {
namespace {

bool is_alias(const at::Tensor& gradient, const at::Tensor& arrived) {
  return arrived.defined() && arrived.has_storage() &&
         arrived.storage().is_alias_of(gradient.storage());
}

}  // namespace

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
      gradient.scalar_type() != parameter.scalar_type() || gradient.is_conj() ||
      gradient.is_neg()) {
    return false;
  }
  return parameter.is_non_overlapping_and_dense() ? gradient.strides() == parameter.strides()
                                                  : gradient.is_contiguous();
}

bool has_one_owner(const at::Tensor& gradient, const at::Tensor& arrived) {
  if (!gradient.has_storage() || gradient.use_count() != 1) return false;
  // Each tensor counts once for the storage, however many handles refer to it.
  std::size_t known = 1;
  if (is_alias(gradient, arrived)) {
    if (arrived.is_same(gradient) || arrived.use_count() != 1) return false;
    ++known;
    // A view, as of the transposed weight of a linear layer, keeps what it is a view of.
    if (arrived.is_view()) {
      if (arrived._base().use_count() != 1) return false;
      ++known;
    }
  }
  return gradient.storage().use_count() == known;
}

void replace_alias(const at::Tensor& parameter, const at::Tensor& arrived) {
  const at::Tensor& gradient = parameter.grad();
  if (!gradient.defined() || gradient.requires_grad() || !gradient.has_storage() ||
      !is_alias(gradient, arrived) || has_one_owner(gradient, arrived)) {
    return;
  }
  const c10::NoGradGuard no_grad;
  parameter.mutable_grad() = gradient.clone();
}

}  // namespace lockstep::inline internal
