#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

namespace models {

/// Two 3×3 convolutions, each with batch norm, beside a shortcut: "Deep Residual Learning for Image
/// Recognition" (He et al., 2015), figure 2. The shortcut is a 1×1 convolution where the shape
/// changes.
class BasicBlockImpl : public torch::nn::Cloneable<BasicBlockImpl> {
 public:
  BasicBlockImpl(std::int64_t in_channels, std::int64_t channels, std::int64_t stride);
  void reset() override;
  at::Tensor forward(const at::Tensor& images);

 private:
  std::int64_t in_channels_;
  std::int64_t channels_;
  std::int64_t stride_;
  torch::nn::Conv2d conv1_ = nullptr;
  torch::nn::BatchNorm2d norm1_ = nullptr;
  torch::nn::Conv2d conv2_ = nullptr;
  torch::nn::BatchNorm2d norm2_ = nullptr;
  torch::nn::Sequential shortcut_ = nullptr;
};
TORCH_MODULE(BasicBlock);

/// ResNet-18 for images of 32×32 pixels (CIFAR), [batch, 3, 32, 32]: as that for ImageNet, but for
/// a first convolution of 3×3 with stride 1 and no first pooling. Gives logits. 11.2 million
/// parameters in 62 tensors with 10 classes. `width`: channels of the first stage; the last has
/// eight times as many.
class ResNet18Impl : public torch::nn::Cloneable<ResNet18Impl> {
 public:
  explicit ResNet18Impl(std::int64_t classes = 10, std::int64_t width = 64);
  void reset() override;
  at::Tensor forward(const at::Tensor& images);

 private:
  std::int64_t class_count_;
  std::int64_t width_;
  torch::nn::Conv2d conv_ = nullptr;
  torch::nn::BatchNorm2d norm_ = nullptr;
  torch::nn::Sequential stages_ = nullptr;
  torch::nn::Linear classes_ = nullptr;
};
TORCH_MODULE(ResNet18);

}  // namespace models
