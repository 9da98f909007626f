#include "lockstep/ddp/exchange/own_gradients.h"

#include <cstddef>
#include <optional>

#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/GradMode.h>

#include "lockstep/comm/kernels/reduce_kernel.h"
#include "lockstep/ddp/exchange/set_gradient.h"

namespace lockstep::inline internal {
namespace {

std::optional<Element> fast_element_of(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || !tensor.is_non_overlapping_and_dense()) return std::nullopt;
  if (tensor.scalar_type() == at::kFloat) return Element::kFloat32;
  if (tensor.scalar_type() == at::kDouble) return Element::kFloat64;
  return std::nullopt;
}

void add_squares(const at::Tensor& sum, const at::Tensor& values) {
  const auto element = sum.is_cpu() ? fast_element_of(values) : std::nullopt;
  if (element) {
    const auto* const bytes = static_cast<const std::byte*>(values.const_data_ptr());
    *sum.mutable_data_ptr<double>() +=
        sum_of_squares(*element, bytes, static_cast<std::size_t>(values.numel()));
    return;
  }
  const at::Tensor norm =
      at::linalg_vector_norm(values.is_complex() ? at::view_as_real(values) : values, 2,
                             at::OptionalIntArrayRef(), false, at::kDouble);
  // The sum is on the group's device, the gradient on its parameter's.
  sum.add_(norm.square().to(sum.device()));
}

}  // namespace

OwnGradients::OwnGradients(const ExchangeOptions& options, std::vector<std::size_t> indices,
                           std::vector<at::Tensor> parameters)
    : GradientExchange(std::move(indices)),
      parameters_(std::move(parameters)),
      sum_of_squares_(options.sum_of_squares) {}

void OwnGradients::finish() {
  const c10::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters_) {
    const at::Tensor gradient = parameter.grad();
    if (!gradient.defined()) continue;
    if (scale_ != 1) set_gradient(parameter, gradient.detach() * scale_, /*as_view=*/true);
    if (!sum_of_squares_.defined()) continue;
    const at::Tensor values =
        gradient.is_sparse() ? parameter.grad().coalesce()._values() : parameter.grad().detach();
    add_squares(sum_of_squares_, values);
  }
}

}  // namespace lockstep::inline internal
