#include "lockstep/ddp/exchange/gradient_ownership.h"

#include <cstddef>

#include <c10/core/GradMode.h>

namespace lockstep::inline internal {
namespace {

bool is_alias(const at::Tensor& gradient, const at::Tensor& arrived) {
  return arrived.defined() && arrived.has_storage() &&
         arrived.storage().is_alias_of(gradient.storage());
}

}  // namespace

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
