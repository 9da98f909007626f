#pragma once

#include <utility>
#include <vector>

#include <torch/nn/module.h>

namespace lockstep {

/// Puts a module and its submodules into evaluation mode during its life, then restores the mode of
/// each. So submodules that the program has frozen (a BatchNorm in evaluation mode) stay frozen.
///
/// ```cpp
/// {
///   const lockstep::EvaluationMode evaluation(*net);
///   const torch::NoGradGuard no_grad;
///   …
/// }
/// ```
///
/// Threads: one at a time.
/// Lifetime: the module and its submodules must outlive it.
class [[nodiscard]] EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& module) {
    module.apply([&](torch::nn::Module& part) { modes_.emplace_back(&part, part.is_training()); });
    module.eval();
  }
  /// Restores parents before their children, since train() of a module reaches all its children.
  ~EvaluationMode() {
    for (const auto& [part, is_training] : modes_) part->train(is_training);
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  std::vector<std::pair<torch::nn::Module*, bool>> modes_;
};

}  // namespace lockstep
