#include "lockstep/ddp/own_gradients.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/GradMode.h>

#include "lockstep/ddp/set_gradient.h"

namespace lockstep {

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
    const at::Tensor norm =
        at::linalg_vector_norm(values.is_complex() ? at::view_as_real(values) : values, 2,
                               at::OptionalIntArrayRef(), false, at::kDouble);
    sum_of_squares_.add_(norm.square());
  }
}

}  // namespace lockstep
