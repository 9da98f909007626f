#include "lockstep/ddp/internal/gradient_hooks.h"

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/log.h"

namespace lockstep::inline internal {
namespace {

std::atomic<void (*)()>& error_translator() {
  static std::atomic<void (*)()> translator = nullptr;
  return translator;
}

template <class Call>
void with_translated_errors(Call&& call) {
  try {
    call();
  } catch (...) {
    if (const auto translate = error_translator().load()) translate();
    throw;
  }
}

// Runs after autograd has written a parameter's .grad.
class AfterAccumulate final : public torch::autograd::FunctionPostHook {
 public:
  AfterAccumulate(GradientHooks::Target& target, std::size_t index)
      : target_(target), index_(index) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& inputs) override {
    with_translated_errors([&] { target_.gradient_ready(index_, inputs[0]); });
    return outputs;
  }

 private:
  GradientHooks::Target& target_;
  const std::size_t index_;
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

using Watch = std::weak_ptr<GradientHooks::Target*>;

void end_with_pass(GradientHooks::Target& target);

// Follows a node that has run a pass of its own: runs in the pass that the node belongs to.
class AfterNode final : public torch::autograd::FunctionPostHook {
 public:
  explicit AfterNode(Watch target) : target_(std::move(target)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    // Once: a graph that is retained may run the node again.
    if (std::exchange(is_told_, true)) return outputs;
    torch::autograd::Engine::get_default_engine().queue_callback([target = target_] {
      with_translated_errors([&] {
        const auto alive = target.lock();
        if (alive) return end_with_pass(**alive);
        throw UsageError(
            "DistributedDataParallel: the wrapper was destroyed before the backward pass ended in "
            "which its gradients are exchanged; keep it until the outermost backward() returns");
      });
    });
    return outputs;
  }

 private:
  Watch target_;
  bool is_told_ = false;
};

// Their own call runs the pass, not one of their hooks.
bool is_checkpoint(const torch::autograd::Node& node) {
  return node.name() == "CheckpointFunctionBackward";
}

// While a node's hooks run, no other may be added to them.
void refuse_hooks_of_others(const torch::autograd::Node& node) {
  if (is_checkpoint(node)) return;
  for (const auto& hook : node.post_hooks()) {
    const bool is_own = dynamic_cast<const AfterAccumulate*>(hook.get()) != nullptr ||
                        dynamic_cast<const AfterNode*>(hook.get()) != nullptr;
    if (is_own) continue;
    throw UsageError(
        concat("DistributedDataParallel: a backward pass of the model runs inside of ", node.name(),
               ", which has hooks of its own (grad_fn.register_hook); run the pass in a "
               "hook of a tensor (tensor.register_hook), or after backward()"));
  }
}

void warn_of_late_average(const torch::autograd::Node& node) {
  static std::atomic<bool> is_said = false;
  if (is_checkpoint(node) || is_said.exchange(true)) return;
  log(LogLevel::kWarning,
      concat("a backward pass of the model runs inside of ", node.name(),
             ": its gradients are averaged when the outermost backward() returns; use them after "
             "that"));
}

void end_with_pass(GradientHooks::Target& target) {
  // No node is being run at the end of the outermost pass; at the end of one within, the node
  // that runs it is.
  const auto node = torch::autograd::get_current_node();
  if (!node) return target.backward_ended();
  refuse_hooks_of_others(*node);
  warn_of_late_average(*node);
  node->add_post_hook(std::make_unique<AfterNode>(target.watch()));
}

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

GradientHooks::GradientHooks(const std::vector<at::Tensor>& parameters, Target& target) {
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    auto accumulator = torch::autograd::impl::grad_accumulator(parameters[index]);
    const auto key = accumulator->add_post_hook(std::make_unique<AfterAccumulate>(target, index));
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

void translate_errors_with(void (*translate)()) {
  error_translator() = translate;
}

void tell_end_of_backward(GradientHooks::Target& target) {
  // One pointer: std::function has room for it without an allocation.
  torch::autograd::Engine::get_default_engine().queue_callback(
      [&target] { with_translated_errors([&] { end_with_pass(target); }); });
}

}  // namespace lockstep::inline internal
