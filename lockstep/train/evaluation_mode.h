#pragma once

#include <utility>
#include <vector>

#include <torch/nn/module.h>

namespace lockstep {

/// Puts a module and all that it holds into evaluation mode while it lives, then each into the mode
/// in which it was: parts that the program has frozen (a BatchNorm in evaluation mode) stay so.
///
///   {
///     const lockstep::EvaluationMode evaluation(*net);
///     const torch::NoGradGuard no_grad;
///     …
///   }
///
/// Threads: one at a time. Lifetime: the module must outlive it, with the parts that it has now.
class [[nodiscard]] EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& module) {
    module.apply([&](torch::nn::Module& part) { modes_.emplace_back(&part, part.is_training()); });
    module.eval();
  }
  /// A module's train() reaches all its parts, which stand behind it.
  ~EvaluationMode() {
    for (const auto& [part, is_training] : modes_) part->train(is_training);
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  std::vector<std::pair<torch::nn::Module*, bool>> modes_;
};

}  // namespace lockstep
