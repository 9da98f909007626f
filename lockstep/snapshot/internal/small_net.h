#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/optimizer.h>

/// What the tests of this folder train.
namespace lockstep::testing {

/// Has nested names, buffers, an integer buffer and dropout.
struct SmallNetImpl : torch::nn::Module {
  explicit SmallNetImpl(int hidden = 8);
  at::Tensor forward(const at::Tensor& input);

  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Dropout dropout;
  torch::nn::Linear second;
};
TORCH_MODULE(SmallNet);

/// Some steps on random batches, which come from the default generator as the dropout masks do.
void train(SmallNet& net, torch::optim::Optimizer& optimizer, int steps);

/// Whether all parameters and buffers are equal, bit for bit.
bool same_weights(const SmallNet& a, const SmallNet& b);

}  // namespace lockstep::testing
