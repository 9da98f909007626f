#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

namespace lockstep::inline internal {

/// Tells a target whenever autograd has added to the gradient of one of some parameters, and, where
/// asked, when the backward pass ends.
/// Threads: the target is called on autograd's.
/// Lifetime: the hooks are removed with it; the target must outlive it.
class GradientHooks {
 public:
  class Target {
   public:
    /// `arrived`: what autograd has added to the gradient, or made the gradient itself.
    virtual void gradient_ready(std::size_t index, const at::Tensor& arrived) = 0;
    /// See tell_end_of_backward.
    virtual void backward_ended() = 0;

   protected:
    ~Target() = default;
  };

  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(std::declval<at::Tensor>()));

  GradientHooks(const std::vector<at::Tensor>& parameters, Target& target);
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

/// Called where a target throws into autograd, in the catch block: may throw another error in its
/// place, such as one of the language that a binding serves. Process-wide.
void translate_errors_with(void (*translate)());

/// Calls target.backward_ended() once, when the backward pass that is under way ends: the outermost
/// one, where a module runs a backward pass of its own within (activation checkpointing).
/// Threads: on one of autograd's, from a hook; the target is called on the thread that ends the
/// pass. Lifetime: the target must outlive the pass. Limit: autograd runs what is nested more than
/// 60 deep on threads of their own, where the end of such a pass is taken for that of the
/// outermost.
void tell_end_of_backward(GradientHooks::Target& target);

}  // namespace lockstep::inline internal
