#pragma once

#include <functional>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

namespace lockstep::bench {

/// A model with one batch and its loss; the same in pytorch_ddp.py.
struct Task {
  torch::nn::Sequential model;
  at::Tensor inputs;
  at::Tensor targets;
  std::function<at::Tensor(const at::Tensor& outputs, const at::Tensor& targets)> loss;
};

/// "toy", "linear", "mlp", "resnet18", "written". Errors: UsageError for any other name.
Task make_task(const std::string& name);

}  // namespace lockstep::bench
