#pragma once

#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

namespace lockstep::testing {

using Sizes = std::vector<std::int64_t>;

/// A module whose gradients are what it is called with: parameter i times factor i, summed. An
/// undefined factor leaves its parameter unused.
struct FactorsImpl : torch::nn::Module {
  explicit FactorsImpl(const Sizes& sizes) {
    for (const std::int64_t size : sizes) {
      factors.push_back(register_parameter("p" + std::to_string(factors.size()), at::ones({size})));
    }
  }
  at::Tensor forward(const std::vector<at::Tensor>& by) {
    at::Tensor sum = at::zeros({}, at::kDouble);
    for (std::size_t i = 0; i < by.size(); ++i) {
      if (!by[i].defined()) continue;
      sum = sum + (factors[i] * by[i].to(factors[i].scalar_type())).sum().to(at::kDouble);
    }
    return sum;
  }
  std::vector<at::Tensor> factors;
};
TORCH_MODULE(Factors);

}  // namespace lockstep::testing
