#include "tests/fuzz/differential/gradient_actions.h"

#include <algorithm>
#include <cstddef>

#include <ATen/ATen.h>

namespace lockstep::differential {
namespace {

bool has_sparse_gradient(const Plan& plan, std::size_t parameter) {
  return std::any_of(plan.ops.begin(), plan.ops.end(), [&](const OpPlan& op) {
    return op.sparse && op.parameter == static_cast<int>(parameter);
  });
}

// Contiguous, also where the parameter is not.
at::Tensor filled(const Plan& plan, std::size_t index, const at::Tensor& parameter, double value) {
  at::Tensor dense = at::zeros(parameter.sizes(), parameter.options());
  if (value != 0) dense.fill_(value);  // Zeros stay of the version of a new tensor.
  return has_sparse_gradient(plan, index) ? dense.to_sparse(1) : dense;
}

}  // namespace

void separate_gradients(const std::vector<at::Tensor>& parameters) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    at::Tensor& gradient = parameters[i].mutable_grad();
    if (!gradient.defined() || gradient.is_sparse() || gradient.numel() == 0) continue;
    const bool is_shared =
        std::any_of(parameters.begin(), parameters.begin() + static_cast<std::ptrdiff_t>(i),
                    [&](const at::Tensor& other) {
                      return other.grad().defined() && !other.grad().is_sparse() &&
                             other.grad().const_data_ptr() == gradient.const_data_ptr();
                    });
    if (is_shared) gradient = gradient.clone();
  }
}

void act_on_gradients(const Plan& plan, GradAction action,
                      const std::vector<at::Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  separate_gradients(parameters);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!plan.parameters[i].is_trained) continue;
    at::Tensor& gradient = parameters[i].mutable_grad();
    switch (action) {
      case GradAction::kSetToNone:
        gradient = at::Tensor();
        break;
      case GradAction::kZeroInPlace:
        if (gradient.defined()) gradient = gradient.detach().zero_();
        break;
      case GradAction::kClone:
        if (gradient.defined()) gradient = gradient.detach().clone();
        break;
      case GradAction::kAssignZeros:
        gradient = filled(plan, i, parameters[i].detach(), 0);
        break;
      case GradAction::kAssignNines:
        gradient = filled(plan, i, parameters[i].detach(), 9);
        break;
      case GradAction::kKeep:
        break;
    }
  }
}

}  // namespace lockstep::differential
