#include "lockstep/rpc/autograd_record.h"

#include <algorithm>
#include <optional>

#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/autograd/utils.h>

#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"

namespace lockstep::rpc {

namespace torch_autograd = torch::distributed::autograd;

namespace {

// Of the process's first session.
std::optional<int>& rank_of_numbers() {
  static std::optional<int> rank;
  return rank;
}

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
                          " in its first session, and only that one can have contexts"));
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

}  // namespace lockstep::rpc
