#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "tests/checkpoint.h"

// The modules of tests/python/parity/ddp_features_pytorch.py, with the same names. Weights are read from
// what Python wrote.
namespace lockstep::testing {

struct MlpImpl : torch::nn::Module {
  MlpImpl() {
    first = register_module("first", torch::nn::Linear(6, 9));
    second = register_module("second", torch::nn::Linear(9, 9));
    last = register_module("last", torch::nn::Linear(9, 3));
  }
  at::Tensor forward(const at::Tensor& x) { return last(at::tanh(second(at::tanh(first(x))))); }
  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};
  torch::nn::Linear last{nullptr};
};
TORCH_MODULE(Mlp);

struct NormedImpl : torch::nn::Module {
  NormedImpl() {
    first = register_module("first", torch::nn::Linear(torch::nn::LinearOptions(6, 9).bias(false)));
    norm = register_module("norm", torch::nn::BatchNorm1d(9));
    last = register_module("last", torch::nn::Linear(9, 3));
  }
  at::Tensor forward(const at::Tensor& x) { return last(at::tanh(norm(first(x)))); }
  torch::nn::Linear first{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear last{nullptr};
};
TORCH_MODULE(Normed);

struct ProjectImpl : torch::nn::Module {
  explicit ProjectImpl(const at::Tensor& of) { weight = register_parameter("weight", of); }
  at::Tensor forward(const at::Tensor& x) { return at::matmul(x, weight.t()); }
  at::Tensor weight;
};
TORCH_MODULE(Project);

// Two modules share a parameter, and one module is used twice.
struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    words = register_module("words", torch::nn::Embedding(11, 6));
    hidden = register_module("hidden", torch::nn::Linear(6, 6));
    output = register_module("output", Project(words->weight));
  }
  at::Tensor forward(const at::Tensor& indices) {
    at::Tensor x = words(indices);
    for (int use = 0; use < 2; ++use) x = at::tanh(hidden(x));
    return output(x);
  }
  torch::nn::Embedding words{nullptr};
  torch::nn::Linear hidden{nullptr};
  Project output{nullptr};
};
TORCH_MODULE(Tied);

struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    for (int i = 0; i < 3; ++i) {
      branches.push_back(register_module("branch" + std::to_string(i), torch::nn::Linear(6, 6)));
    }
  }
  std::vector<std::optional<at::Tensor>> forward(const at::Tensor& x, int branch) {
    return {std::nullopt, at::tanh(branches[static_cast<std::size_t>(branch)](x))};
  }
  std::vector<torch::nn::Linear> branches;
};
TORCH_MODULE(Branches);

// The body is used `uses` times, recomputed in backward or not; one parameter is not used.
struct StackImpl : torch::nn::Module {
  explicit StackImpl(int uses = 1, bool checkpointed = false)
      : uses_(uses), checkpointed_(checkpointed) {
    entry = register_module("entry", torch::nn::Linear(6, 7));
    body = register_module("body", torch::nn::Linear(7, 7));
    unused = register_parameter("unused", at::ones({3}));
    part_ = [this](const at::Tensor& x) { return at::tanh(body(x)); };
  }
  at::Tensor forward(at::Tensor x) {
    x = entry(x);
    for (int use = 0; use < uses_; ++use)
      x = checkpointed_ ? Checkpoint::apply(x, part_) : part_(x);
    return x;
  }
  torch::nn::Linear entry{nullptr};
  torch::nn::Linear body{nullptr};
  at::Tensor unused;

 private:
  int uses_;
  bool checkpointed_;
  Part part_;
};
TORCH_MODULE(Stack);

struct DtypesImpl : torch::nn::Module {
  DtypesImpl() {
    wide = register_parameter("wide", at::zeros({6, 5}, at::kDouble));
    middle = register_parameter("middle", at::zeros({5, 7}));
    narrow = register_parameter("narrow", at::zeros({7, 3}, at::kBFloat16));
    scale = register_parameter("scale", at::zeros({5}, at::kDouble));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor hidden = at::tanh(at::matmul(x.to(at::kDouble), wide) * scale);
    const at::Tensor narrowed = at::tanh(at::matmul(hidden.to(at::kFloat), middle));
    return at::matmul(narrowed.to(at::kBFloat16), narrow).to(at::kFloat);
  }
  at::Tensor wide;
  at::Tensor middle;
  at::Tensor narrow;
  at::Tensor scale;
};
TORCH_MODULE(Dtypes);

struct ComplexImpl : torch::nn::Module {
  ComplexImpl() {
    turn = register_parameter("turn", at::zeros({6, 5}, at::kComplexFloat));
    scale = register_parameter("scale", at::zeros({5}));
  }
  at::Tensor forward(const at::Tensor& x) {
    return at::abs(at::matmul(x.to(at::kComplexFloat), turn) * scale);
  }
  at::Tensor turn;
  at::Tensor scale;
};
TORCH_MODULE(Complex);

struct LookupImpl : torch::nn::Module {
  LookupImpl() {
    table = register_module("table",
                            torch::nn::Embedding(torch::nn::EmbeddingOptions(13, 3).sparse(true)));
    linear = register_module("linear", torch::nn::Linear(3, 2));
  }
  at::Tensor forward(const at::Tensor& indices) { return linear(table(indices)); }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(Lookup);

}  // namespace lockstep::testing
