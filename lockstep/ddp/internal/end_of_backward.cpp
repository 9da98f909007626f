#include "lockstep/ddp/internal/end_of_backward.h"

#include <memory>
#include <utility>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/node.h>

namespace lockstep::inline internal {
namespace {

// Of a node that has run a pass of its own: runs in the pass that the node belongs to.
class AfterNode final : public torch::autograd::FunctionPostHook {
 public:
  explicit AfterNode(std::function<void()> action) : action_(std::move(action)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    // Once: a graph that is retained may run the node again.
    if (action_) at_end_of_backward(std::exchange(action_, nullptr));
    return outputs;
  }

 private:
  std::function<void()> action_;
};

}  // namespace

void at_end_of_backward(std::function<void()> action) {
  torch::autograd::Engine::get_default_engine().queue_callback([action = std::move(action)] {
    // No node is being run at the end of the outermost pass; at the end of one within, the node
    // that runs it is.
    if (const auto node = torch::autograd::get_current_node()) {
      node->add_post_hook(std::make_unique<AfterNode>(action));
    } else {
      action();
    }
  });
}

}  // namespace lockstep::inline internal
