#pragma once

#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

namespace lockstep::testing {

/// A part of a module: all that it takes besides is its own.
using Part = std::function<at::Tensor(const at::Tensor&)>;

/// Keeps nothing of the part's forward pass and runs it again in backward, with a backward pass of
/// its own: torch.utils.checkpoint(use_reentrant=True). The part must outlive the backward pass.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const Part& part) {
    context->save_for_backward({input});
    context->saved_data["part"] = reinterpret_cast<std::int64_t>(&part);
    return part(input);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto& part = *reinterpret_cast<const Part*>(context->saved_data["part"].toInt());
    const c10::AutoGradMode with_graph(true);
    const at::Tensor input = context->get_saved_variables()[0].detach().requires_grad_(true);
    part(input).backward(gradients[0]);
    return {input.grad(), at::Tensor()};
  }
};

}  // namespace lockstep::testing
