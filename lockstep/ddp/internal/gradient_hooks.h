#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

namespace lockstep::inline internal {

/// Calls a target whenever autograd has added to the gradient of one of some parameters, and, if
/// requested, when the backward pass ends.
/// Threads: the target is called on autograd threads.
/// Lifetime: the destructor removes the hooks; the target must outlive it.
class GradientHooks {
 public:
  class Target {
   public:
    /// `arrived`: what autograd has added to the gradient, or made the gradient.
    virtual void gradient_ready(std::size_t index, const at::Tensor& arrived) = 0;
    /// See tell_end_of_backward.
    virtual void backward_ended() = 0;
    /// Expires with the target.
    std::weak_ptr<Target*> watch() const { return own_; }

   protected:
    Target() : own_(std::make_shared<Target*>(this)) {}
    ~Target() = default;

   private:
    std::shared_ptr<Target*> own_;
  };

  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(std::declval<at::Tensor>()));

  GradientHooks(const std::vector<at::Tensor>& parameters, Target& target);
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

  /// Whether the hook still receives this parameter's gradient. It does not once the parameter's
  /// dtype or device was changed or it was frozen.
  bool leads_here(std::size_t index, const at::Tensor& parameter) const;

  /// While it lives, gradients that arrive are multiplied by `factor` before they are accumulated;
  /// by 0 even if they are NaN. One at a time.
  class Multiply {
   public:
    Multiply(const GradientHooks& hooks, double factor);
    ~Multiply();
    Multiply(const Multiply&) = delete;
    Multiply& operator=(const Multiply&) = delete;

   private:
    const GradientHooks& hooks_;
  };

  /// Autograd's node that accumulates this parameter's gradient.
  const torch::autograd::Node* accumulator(std::size_t index) const;

 private:
  struct Hook {
    Accumulator accumulator;  // kept alive: the parameter holds it weakly
    std::uintptr_t key;
  };
  std::vector<Hook> hooks_;
};

/// Sets a function that is called in the catch block when a target throws into autograd. It may
/// throw another error instead, such as one of the language of a binding. Process-wide.
void translate_errors_with(void (*translate)());

/// Calls target.backward_ended() once, when the current backward pass ends: the outermost one if it
/// is nested (activation checkpointing, a pass in a hook, of which a warning tells). Limit:
/// autograd runs passes nested more than 60 deep on separate threads, where the end of such a pass
/// is taken for that of the outermost. Threads: on an autograd thread, from a hook; the target is
/// called on the thread that ends the pass. Lifetime: the target must outlive the pass, or the
/// nested one: the outermost one fails if it does not.
void tell_end_of_backward(GradientHooks::Target& target);

}  // namespace lockstep::inline internal
