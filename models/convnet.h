#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

namespace models {

/// A small convolutional network for grey images of 8×8 pixels, [batch, 1, 8, 8], in 10 classes;
/// gives logits. About 150,000 parameters.
class ConvNetImpl : public torch::nn::Module {
 public:
  ConvNetImpl();
  at::Tensor forward(const at::Tensor& images);

 private:
  torch::nn::Conv2d edges_;
  torch::nn::Conv2d shapes_;
  torch::nn::Linear hidden_;
  torch::nn::Linear classes_;
};
TORCH_MODULE(ConvNet);

}  // namespace models
