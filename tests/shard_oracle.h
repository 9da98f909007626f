#pragma once

// The oracle of logical shards: one process computes the shards of a step one after the other and
// adds up what they give by the tree's definition, with LibTorch alone.
#include <bit>
#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

namespace lockstep::testing {

// Of the halves of the smallest power of two that holds all shards.
inline at::Tensor tree_sum(const std::vector<at::Tensor>& of_shards, std::size_t begin,
                           std::size_t size) {
  if (size == 1) return of_shards[begin];
  const std::size_t half = size / 2;
  const at::Tensor left = tree_sum(of_shards, begin, half);
  if (begin + half >= of_shards.size()) return left;
  return left + tree_sum(of_shards, begin + half, half);
}

inline at::Tensor tree_sum(const std::vector<at::Tensor>& of_shards) {
  return tree_sum(of_shards, 0, std::bit_ceil(of_shards.size()));
}

/// What a shard counts.
struct OracleShard {
  double loss = 0;
  double fraction_of_step = 0;
  /// All shards with samples have one, or none has.
  std::optional<double> weight = std::nullopt;
};

/// Calls `run_shard` for each shard: it makes the backward pass of the shard's loss times its
/// weight or its part of the step, or none. Leaves the step's gradients and buffers in the module;
/// returns the mean loss.
inline double step_of_oracle(const torch::nn::Module& module, int shards,
                             const std::function<OracleShard(int shard)>& run_shard) {
  const std::vector<at::Tensor> parameters = module.parameters();
  const std::vector<at::Tensor> buffers = module.buffers();
  std::vector<at::Tensor> before;
  for (const at::Tensor& buffer : buffers) before.push_back(buffer.clone());
  std::vector<std::vector<at::Tensor>> gradients(parameters.size());
  std::vector<bool> is_reached(parameters.size());
  std::vector<std::vector<at::Tensor>> changes(buffers.size());
  std::vector<at::Tensor> losses;
  std::vector<at::Tensor> weights;
  bool is_weighted = false;
  const auto number = [](double value) { return at::scalar_tensor(value, at::kDouble); };
  for (int shard = 0; shard < shards; ++shard) {
    {
      const c10::NoGradGuard no_grad;
      for (std::size_t i = 0; i < buffers.size(); ++i) buffers[i].copy_(before[i]);
    }
    for (const at::Tensor& parameter : parameters) parameter.mutable_grad().reset();
    const OracleShard of_shard = run_shard(shard);
    const c10::NoGradGuard no_grad;
    losses.push_back(number(of_shard.loss * of_shard.fraction_of_step));
    weights.push_back(number(of_shard.weight.value_or(0)));
    is_weighted = is_weighted || of_shard.weight;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor& gradient = parameters[i].grad();
      is_reached[i] = is_reached[i] || gradient.defined();
      gradients[i].push_back(gradient.defined() ? gradient.clone() : at::zeros_like(parameters[i]));
    }
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      const at::Tensor change = buffers[i] - before[i];
      const bool is_integer = !at::isFloatingType(change.scalar_type());
      changes[i].push_back(is_integer ? change * (shard == 0 ? 1 : 0)
                                      : change * of_shard.fraction_of_step);
    }
  }
  const c10::NoGradGuard no_grad;
  const double weight = tree_sum(weights).item<double>();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    at::Tensor sum = tree_sum(gradients[i]);
    if (is_weighted && weight > 0) sum = sum / weight;
    parameters[i].mutable_grad() = is_reached[i] ? sum : at::Tensor();
  }
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    buffers[i].copy_(before[i] + tree_sum(changes[i]));
  }
  return tree_sum(losses).item<double>();
}

}  // namespace lockstep::testing
