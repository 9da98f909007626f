#include "models/convnet.h"

#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>

namespace models {
namespace {

constexpr int kClasses = 10;
constexpr int kEdges = 32;
constexpr int kShapes = 64;
constexpr int kPooledSide = 4;
constexpr int kHidden = 128;

torch::nn::Conv2dOptions same_size(int in, int out) {
  return torch::nn::Conv2dOptions(in, out, /*kernel_size=*/3).padding(1);
}

}  // namespace

ConvNetImpl::ConvNetImpl()
    : edges_(register_module("edges", torch::nn::Conv2d(same_size(1, kEdges)))),
      shapes_(register_module("shapes", torch::nn::Conv2d(same_size(kEdges, kShapes)))),
      hidden_(register_module("hidden",
                              torch::nn::Linear(kShapes * kPooledSide * kPooledSide, kHidden))),
      classes_(register_module("classes", torch::nn::Linear(kHidden, kClasses))) {}

at::Tensor ConvNetImpl::forward(const at::Tensor& images) {
  at::Tensor features = at::relu(edges_(images));
  features = at::max_pool2d(at::relu(shapes_(features)), /*kernel_size=*/2);
  return classes_(at::relu(hidden_(features.flatten(1))));
}

}  // namespace models
