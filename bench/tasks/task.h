#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/data/example.h>
#include <torch/nn/modules/container/sequential.h>

namespace lockstep::bench {

/// A model to train on random samples, "digits" on those of examples/data; the same in tasks.py.
struct Task {
  torch::nn::Sequential model;
  std::int64_t batch_size;  ///< of one rank
  std::function<torch::data::Example<>(std::int64_t count)> samples;
  std::function<at::Tensor(const at::Tensor& outputs, const at::Tensor& targets)> loss;
  bool with_adamw = false;  ///< else SGD
  /// Gives parameters their first values. Empty: they have them.
  std::function<void()> fill = {};
};

/// "toy", "linear", "digits", "mlp", "mlp1m", "mlp10m" and "mlp100m" (parameters), "resnet18",
/// "resnet18_16x16" (pixels of an image), "resnet18_narrow" (with an eighth of its channels),
/// "mingpt", "mingpt_dropout" (of gpt-nano's sizes), "gpt124m", "written" and, with so many MB
/// of gradients, "written1mb", "written4mb", "written16mb", "written64mb", "written256mb",
/// "written1024mb". Errors: UsageError for any other name.
Task make_task(const std::string& name);

}  // namespace lockstep::bench
