#include "lockstep/comm/internal/collective_backward.h"

#include <algorithm>
#include <memory>
#include <unordered_set>
#include <vector>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace lockstep::inline internal {
namespace {

struct CollectiveMark final : torch::autograd::FunctionPreHook {
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients) override {
    return gradients;
  }
};

bool is_marked(torch::autograd::Node& node) {
  const auto& hooks = node.pre_hooks();
  return std::any_of(hooks.begin(), hooks.end(), [](const auto& hook) {
    return dynamic_cast<const CollectiveMark*>(hook.get()) != nullptr;
  });
}

}  // namespace

void mark_collective_backward(const at::Tensor& output) {
  const auto& node = output.grad_fn();
  if (node) node->add_pre_hook(std::make_unique<CollectiveMark>());
}

bool has_collective_backward(const at::Tensor& output) {
  std::vector<torch::autograd::Node*> to_visit;
  std::unordered_set<const torch::autograd::Node*> seen;
  const auto visit = [&](torch::autograd::Node* node) {
    if (node != nullptr && seen.insert(node).second) to_visit.push_back(node);
  };
  visit(output.grad_fn().get());
  while (!to_visit.empty()) {
    torch::autograd::Node& node = *to_visit.back();
    to_visit.pop_back();
    if (is_marked(node)) return true;
    for (const torch::autograd::Edge& edge : node.next_edges()) visit(edge.function.get());
  }
  return false;
}

}  // namespace lockstep::inline internal
