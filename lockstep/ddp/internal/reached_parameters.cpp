#include "lockstep/ddp/internal/reached_parameters.h"

#include <unordered_set>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

namespace lockstep::inline internal {

ReachedParameters::ReachedParameters(const std::vector<const torch::autograd::Node*>& accumulators)
    : reached_(accumulators.size()) {
  for (std::size_t index = 0; index < accumulators.size(); ++index) {
    index_of_.emplace(accumulators[index], index);
  }
}

void ReachedParameters::add(const std::vector<at::Tensor>& outputs) {
  is_known_ = true;
  std::vector<const torch::autograd::Node*> to_visit;
  std::unordered_set<const torch::autograd::Node*> seen;
  const auto visit = [&](const torch::autograd::Edge& edge) {
    const auto* const node = edge.function.get();
    if (node != nullptr && seen.insert(node).second) to_visit.push_back(node);
  };
  for (const at::Tensor& output : outputs) {
    if (output.defined() && output.requires_grad()) {
      visit(torch::autograd::impl::gradient_edge(output));
    }
  }
  while (!to_visit.empty()) {
    const auto* const node = to_visit.back();
    to_visit.pop_back();
    const auto found = index_of_.find(node);
    if (found != index_of_.end()) reached_[found->second] = true;
    for (const torch::autograd::Edge& edge : node->next_edges()) visit(edge);
  }
}

void ReachedParameters::clear() {
  is_known_ = false;
  reached_.assign(reached_.size(), false);
}

}  // namespace lockstep::inline internal
