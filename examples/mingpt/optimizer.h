#pragma once

#include <cstdint>

#include <torch/optim/adamw.h>

namespace torch::nn {
class Module;
}

namespace mingpt {

/// Names and defaults of the first two are those of the tutorial's OptimizerConfig.
struct OptimizerConfig {
  double learning_rate = 3e-4;
  double weight_decay = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.95;
  /// Steps in which the learning rate rises in equal amounts to its full height.
  std::int64_t warmup_steps = 0;
  /// Fraction of the learning rate after the last step, to which it falls along a cosine from the
  /// warm-up on. 1: it stays constant.
  double final_learning_rate_factor = 0.1;
};

/// AdamW with the tutorial's groups, in its order, so that the optimizer's state goes to and from
/// Python: first what decays, the matrices of linear layers and of the attention, then what does
/// not, biases, layer norms and embeddings; sorted by name.
/// Errors: UsageError for a parameter that is of neither kind.
torch::optim::AdamW make_optimizer(const torch::nn::Module& module, const OptimizerConfig& config);

/// Of step `step` (from 0) among `total_steps`.
double learning_rate(const OptimizerConfig& config, std::int64_t step, std::int64_t total_steps);

void set_learning_rate(torch::optim::Optimizer& optimizer, double rate);

}  // namespace mingpt
