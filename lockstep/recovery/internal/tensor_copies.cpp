#include "lockstep/recovery/internal/tensor_copies.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

namespace lockstep::inline internal {
namespace {

// LibTorch does not count that BatchNorm changes its running statistics. Larger tensors, whose copy
// would cost as much as a step may, are looked at by their versions alone.
constexpr std::size_t kAlwaysCopiedBytes = std::size_t{16} << 20U;

bool is_copied_when_counted(const at::Tensor& tensor) {
  return tensor.nbytes() > kAlwaysCopiedBytes;
}

}  // namespace

TensorDict copies_of(const TensorDict& tensors) {
  TensorDict copies;
  for (const auto& [name, tensor] : tensors) copies.emplace_back(name, tensor.detach().clone());
  return copies;
}

void TensorCopies::remember() {
  if (copies_.empty()) return;  // Each step; the guard costs as much as the rest.
  const at::NoGradGuard no_grad;
  for (Copy& copy : copies_) {
    const std::uint32_t version = copy.tensor._version();
    const bool is_same = copy.value.defined() && copy.version == version;
    if (is_same && is_copied_when_counted(copy.tensor)) continue;
    copy.version = version;
    if (copy.value.defined()) {
      copy.value.copy_(copy.tensor);
    } else {
      copy.value = copy.tensor.detach().clone();
    }
  }
}

void TensorCopies::roll_back() {
  const at::NoGradGuard no_grad;
  for (Copy& copy : copies_) {
    if (!copy.value.defined()) continue;
    if (is_copied_when_counted(copy.tensor) && copy.version == copy.tensor._version()) continue;
    copy.tensor.copy_(copy.value);
    copy.version = copy.tensor._version();
  }
}

std::int64_t gradient_kind(const at::Tensor& parameter) {
  const at::Tensor& gradient = parameter.grad();
  // With one copy per machine one that the program has not used is on the device meta.
  if (!gradient.defined() || gradient.is_meta()) return kNoGradient;
  return gradient.is_sparse() ? gradient.sparse_dim() : 0;
}

void reset_gradient(const at::Tensor& parameter, std::int64_t kind) {
  at::Tensor zeros;
  if (kind == 0) {
    zeros = at::zeros_like(parameter);
  } else if (kind > 0) {
    zeros = at::empty({0}, parameter.options().layout(at::kSparse));
    zeros.sparse_resize_and_clear_(parameter.sizes(), kind, parameter.dim() - kind);
  }
  parameter.mutable_grad() = zeros;
}

}  // namespace lockstep::inline internal
