#include "lockstep/ddp/exchange/set_gradient.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

namespace lockstep::inline internal {
namespace {

// The value of one tensor with the graph of another.
struct WithGraphOf : torch::autograd::Function<WithGraphOf> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor&,
                            const at::Tensor& value) {
    return value.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0], at::Tensor()};
  }
};

}  // namespace

void set_gradient(const at::Tensor& parameter, const at::Tensor& average, bool as_view) {
  const at::Tensor& gradient = parameter.grad();
  if (gradient.defined() && gradient.layout() != average.layout()) return;
  if (gradient.defined() && gradient.requires_grad()) {
    const c10::AutoGradMode with_graph(true);
    parameter.mutable_grad() = WithGraphOf::apply(gradient, average.to(gradient.device()));
    return;
  }
  const c10::NoGradGuard no_grad;
  if (as_view && average.device() == parameter.device()) {
    if (!gradient.is_same(average)) parameter.mutable_grad() = average;
  } else if (gradient.defined()) {
    gradient.copy_(average);
  } else {
    parameter.mutable_grad() = average.to(parameter.options(), /*non_blocking=*/false,
                                          /*copy=*/true);
  }
}

}  // namespace lockstep::inline internal
