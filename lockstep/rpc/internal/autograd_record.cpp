#include "lockstep/rpc/internal/autograd_record.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/autograd/utils.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::rpc::inline internal {

namespace torch_autograd = torch::distributed::autograd;

namespace {

// Of the process's first session.
std::optional<int>& rank_of_numbers() {
  static std::optional<int> rank;
  return rank;
}

std::vector<at::Tensor> with_graph(std::vector<at::Tensor> tensors) {
  std::erase_if(tensors, [](const at::Tensor& tensor) { return !tensor.requires_grad(); });
  return tensors;
}

// Leads from answers to what receives their gradients, and to the arguments, which would look as if
// they had no part in them: the engine passes over what leads to nothing that it is asked for.
struct ThroughCall : torch::autograd::Function<ThroughCall> {
  static std::vector<at::Tensor> forward(torch::autograd::AutogradContext* context,
                                         at::TensorList answers, at::TensorList arguments) {
    context->set_materialize_grads(false);
    context->saved_data["edges"] = static_cast<std::int64_t>(answers.size() + arguments.size());
    std::vector<at::Tensor> views;
    for (const at::Tensor& answer : answers) views.push_back(answer.view_as(answer));
    return views;
  }
  static std::vector<at::Tensor> backward(torch::autograd::AutogradContext* context,
                                          std::vector<at::Tensor> gradients) {
    // A distributed pass names what it goes to, what sends gradients on among it.
    const auto* const asked_for = torch::autograd::get_current_graph_task_exec_info();
    bool is_distributed = asked_for != nullptr && !asked_for->empty();
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      is_distributed = is_distributed && context->needs_input_grad(i);
    }
    if (!is_distributed) {
      throw UsageError(
          "rpc: a local backward reached a tensor exchanged with another worker; call "
          "AutogradContext::backward, which computes first derivatives");
    }
    gradients.resize(static_cast<std::size_t>(context->saved_data["edges"].toInt()));
    return gradients;
  }
};

}  // namespace

void init_autograd(int rank) {
  if (rank_of_numbers()) return;
  torch_autograd::DistAutogradContainer::init(rank);
  rank_of_numbers() = rank;
}

void check_autograd(int rank) {
  if (rank_of_numbers() == rank) return;
  throw UsageError(concat("distributed autograd on rank ", rank, ": this process was rank ",
                          rank_of_numbers().value_or(-1),
                          " in its first session; only that rank can create contexts"));
}

void record_send(const AutogradTag& tag, std::vector<at::Tensor>& tensors) {
  // The engine waits for the gradients of each message that is recorded: where no tensor has a
  // graph none will come.
  const bool has_graph =
      std::ranges::any_of(tensors, [](const at::Tensor& tensor) { return tensor.requires_grad(); });
  if (!has_graph) return;
  const auto context =
      torch_autograd::DistAutogradContainer::getInstance().retrieveContext(tag.context);
  torch_autograd::addSendRpcBackward(context, {tag.context, tag.message}, tensors);
}

void refuse_local_backward(const std::vector<at::Tensor>& answers,
                           const std::vector<at::Tensor>& arguments) {
  const std::vector<at::Tensor> received = with_graph(answers);
  if (received.empty()) return;
  const c10::AutoGradMode with_gradients(true);
  const std::vector<at::Tensor> sent = with_graph(arguments);
  const auto led = ThroughCall::apply(at::TensorList(received), at::TensorList(sent));
  for (std::size_t i = 0; i < received.size(); ++i) {
    torch::autograd::impl::set_gradient_edge(received[i],
                                             torch::autograd::impl::gradient_edge(led[i]));
  }
}

}  // namespace lockstep::rpc::inline internal
