#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

namespace lockstep::inline internal {

/// Calls an action whenever autograd has added to the gradient of one of some parameters.
/// Threads: the action runs on autograd's. Lifetime: the hooks are removed with it.
class GradientHooks {
 public:
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(std::declval<at::Tensor>()));

  /// Gets the parameter's index and what autograd has added, or made the gradient itself.
  using Action = std::function<void(std::size_t index, const at::Tensor& arrived)>;

  GradientHooks() = default;
  GradientHooks(const std::vector<at::Tensor>& parameters, const Action& action);
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

  /// Whether the gradient of the parameter, of this index, still comes by the hook. It does not
  /// once the parameter's dtype or device was changed or it was frozen.
  bool leads_here(std::size_t index, const at::Tensor& parameter) const;

  /// While it lives, what comes is multiplied by `factor` before it is added to gradients; by 0
  /// also what is no number. One at a time.
  class Multiply {
   public:
    Multiply(const GradientHooks& hooks, double factor);
    ~Multiply();
    Multiply(const Multiply&) = delete;
    Multiply& operator=(const Multiply&) = delete;

   private:
    const GradientHooks& hooks_;
  };

  /// Where the gradient of this index is added up.
  const torch::autograd::Node* accumulator(std::size_t index) const;

 private:
  struct Hook {
    Accumulator accumulator;  // kept alive: the parameter holds it weakly
    std::uintptr_t key;
  };
  std::vector<Hook> hooks_;
};

}  // namespace lockstep::inline internal
