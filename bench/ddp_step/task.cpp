#include "bench/ddp_step/task.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"
#include "models/resnet.h"

namespace lockstep::bench {
namespace {

using torch::nn::Linear;
using torch::nn::ReLU;
using torch::nn::Sequential;

at::Tensor mean_squared_error(const at::Tensor& outputs, const at::Tensor& targets) {
  return at::mse_loss(outputs, targets);
}

at::Tensor cross_entropy(const at::Tensor& outputs, const at::Tensor& targets) {
  return at::cross_entropy_loss(outputs, targets);
}

// Backward does nothing but write the gradients of ResNet-18, 45 MB: what is left of a step is what
// the exchange takes.
struct WrittenImpl : torch::nn::Module {
  WrittenImpl() { register_module("model", models::ResNet18()); }
  at::Tensor forward(const at::Tensor& factor) {
    at::Tensor sum = factor;
    for (const at::Tensor& parameter : parameters()) sum = sum + parameter.sum();
    return sum;
  }
};
TORCH_MODULE(Written);

}  // namespace

Task make_task(const std::string& name) {
  if (name == "toy") {
    return {Sequential(Linear(10, 10), ReLU(), Linear(10, 5)), at::randn({20, 10}),
            at::randn({20, 5}), mean_squared_error};
  }
  if (name == "linear") {
    return {Sequential(Linear(20, 1)), at::randn({32, 20}), at::randn({32, 1}), mean_squared_error};
  }
  if (name == "mlp") {
    return {Sequential(Linear(1024, 4096), ReLU(), Linear(4096, 1024), ReLU(), Linear(1024, 100)),
            at::randn({16, 1024}), at::randint(100, {16}, at::kLong), cross_entropy};
  }
  if (name == "resnet18") {
    return {Sequential(models::ResNet18()), at::randn({32, 3, 32, 32}),
            at::randint(10, {32}, at::kLong), cross_entropy};
  }
  if (name == "written") {
    return {Sequential(Written()), at::zeros({1}), at::zeros({1}), mean_squared_error};
  }
  throw UsageError(concat("ddp_step: there is no model '", name,
                          "'; choose toy, linear, mlp, resnet18 or written"));
}

}  // namespace lockstep::bench
