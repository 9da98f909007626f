#include "lockstep/ddp/internal/gradient_hooks.h"

#include <memory>

#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

namespace lockstep::inline internal {
namespace {

// Runs after autograd has written a parameter's .grad.
class AfterAccumulate final : public torch::autograd::FunctionPostHook {
 public:
  AfterAccumulate(GradientHooks::Action action, std::size_t index)
      : action_(std::move(action)), index_(index) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& inputs) override {
    action_(index_, inputs[0]);
    return outputs;
  }

 private:
  GradientHooks::Action action_;
  std::size_t index_;
};

class MultiplyBefore final : public torch::autograd::FunctionPreHook {
 public:
  explicit MultiplyBefore(double factor) : factor_(factor) {}
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients) override {
    torch::autograd::variable_list products;
    for (const at::Tensor& gradient : gradients) {
      if (!gradient.defined()) {
        products.push_back(gradient);
      } else {
        products.push_back(factor_ == 0 ? at::zeros_like(gradient) : gradient.mul(factor_));
      }
    }
    return products;
  }

 private:
  double factor_;
};

}  // namespace

GradientHooks::Multiply::Multiply(const GradientHooks& hooks, double factor) : hooks_(hooks) {
  for (const Hook& hook : hooks_.hooks_) {
    hook.accumulator->add_pre_hook(std::make_unique<MultiplyBefore>(factor));
  }
}

GradientHooks::Multiply::~Multiply() {
  for (const Hook& hook : hooks_.hooks_) {
    std::erase_if(hook.accumulator->pre_hooks(), [](const auto& pre_hook) {
      return dynamic_cast<const MultiplyBefore*>(pre_hook.get()) != nullptr;
    });
  }
}

GradientHooks::GradientHooks(const std::vector<at::Tensor>& parameters, const Action& action) {
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    auto accumulator = torch::autograd::impl::grad_accumulator(parameters[index]);
    const auto key = accumulator->add_post_hook(std::make_unique<AfterAccumulate>(action, index));
    hooks_.push_back({std::move(accumulator), key});
  }
}

GradientHooks::~GradientHooks() {
  for (Hook& hook : hooks_) hook.accumulator->del_post_hook(hook.key);
}

bool GradientHooks::leads_here(std::size_t index, const at::Tensor& parameter) const {
  return parameter.requires_grad() &&
         torch::autograd::impl::try_get_grad_accumulator(parameter) == hooks_[index].accumulator;
}

const torch::autograd::Node* GradientHooks::accumulator(std::size_t index) const {
  return hooks_[index].accumulator.get();
}

}  // namespace lockstep::inline internal
