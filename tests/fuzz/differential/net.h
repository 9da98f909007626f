#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>

#include "tests/checkpoint.h"
#include "tests/fuzz/differential/graph.h"

namespace lockstep::differential {

/// A plan's graph as a user's module.
struct NetImpl : torch::nn::Module {
  NetImpl(const Plan& plan, int rank);

  /// The output, in a vector as models with several have it.
  std::vector<at::Tensor> forward(const at::Tensor& input, int step);

  /// The last part of it.
  std::string name_of(std::size_t parameter) const;
  /// From now on it leaves out what the rank leaves out.
  void compute_as(int rank) { rank_ = rank; }

  Model model;

 private:
  void register_in_units(std::size_t parameter);
  at::Tensor use(std::size_t op, const at::Tensor& value, const at::Tensor& first,
                 const at::Tensor& input);

  const Plan& plan_;
  int rank_;
  torch::nn::BatchNorm1d norm_ = nullptr;
  std::vector<std::shared_ptr<torch::nn::Module>> units_;
  std::deque<lockstep::testing::Part> parts_;  // of checkpoints, which refer to them in backward
};
TORCH_MODULE(Net);

}  // namespace lockstep::differential
