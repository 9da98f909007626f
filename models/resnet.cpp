#include "models/resnet.h"

#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/relu.h>

namespace models {
namespace {

// Batch norm follows, so a bias would be of no effect.
torch::nn::Conv2d conv_without_bias(std::int64_t in, std::int64_t out, int kernel,
                                    std::int64_t stride) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

torch::nn::Sequential make_shortcut(std::int64_t in, std::int64_t out, std::int64_t stride) {
  if (in == out && stride == 1) return torch::nn::Sequential();
  return torch::nn::Sequential(conv_without_bias(in, out, /*kernel=*/1, stride),
                               torch::nn::BatchNorm2d(out));
}

torch::nn::Sequential make_stages(std::int64_t width) {
  torch::nn::Sequential stages;
  std::int64_t in = width;
  for (const std::int64_t channels : {width, 2 * width, 4 * width, 8 * width}) {
    const std::int64_t stride = channels == width ? 1 : 2;
    stages->push_back(BasicBlock(in, channels, stride));
    stages->push_back(BasicBlock(channels, channels, /*stride=*/1));
    in = channels;
  }
  return stages;
}

}  // namespace

BasicBlockImpl::BasicBlockImpl(std::int64_t in_channels, std::int64_t channels, std::int64_t stride)
    : in_channels_(in_channels), channels_(channels), stride_(stride) {
  BasicBlockImpl::reset();
}

void BasicBlockImpl::reset() {
  conv1_ = register_module("conv1", conv_without_bias(in_channels_, channels_, 3, stride_));
  norm1_ = register_module("norm1", torch::nn::BatchNorm2d(channels_));
  conv2_ = register_module("conv2", conv_without_bias(channels_, channels_, 3, 1));
  norm2_ = register_module("norm2", torch::nn::BatchNorm2d(channels_));
  shortcut_ = register_module("shortcut", make_shortcut(in_channels_, channels_, stride_));
}

at::Tensor BasicBlockImpl::forward(const at::Tensor& images) {
  const at::Tensor features = norm2_(conv2_(at::relu(norm1_(conv1_(images)))));
  return at::relu(features + (shortcut_->is_empty() ? images : shortcut_->forward(images)));
}

ResNet18Impl::ResNet18Impl(std::int64_t classes, std::int64_t width)
    : class_count_(classes), width_(width) {
  ResNet18Impl::reset();
}

void ResNet18Impl::reset() {
  conv_ = register_module("conv", conv_without_bias(3, width_, 3, 1));
  norm_ = register_module("norm", torch::nn::BatchNorm2d(width_));
  stages_ = register_module("stages", make_stages(width_));
  classes_ = register_module("classes", torch::nn::Linear(8 * width_, class_count_));
}

at::Tensor ResNet18Impl::forward(const at::Tensor& images) {
  const at::Tensor features = stages_->forward(at::relu(norm_(conv_(images))));
  return classes_(at::adaptive_avg_pool2d(features, {1, 1}).flatten(1));
}

}  // namespace models
