#include "lockstep/rpc/autograd_context.h"

#include <torch/csrc/distributed/autograd/autograd.h>
#include <torch/csrc/distributed/autograd/context/container.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/comm/internal/error_text.h"
#include "lockstep/rpc/internal/autograd_record.h"
#include "lockstep/rpc/internal/transport_error.h"
#include "lockstep/rpc/internal/worker.h"

namespace lockstep::rpc {
namespace {

namespace torch_autograd = torch::distributed::autograd;
using Container = torch_autograd::DistAutogradContainer;

std::int64_t new_context() {
  check_autograd(current_worker()->rank());
  auto& container = Container::getInstance();
  if (container.hasValidContext()) {
    throw UsageError("rpc::AutogradContext: this thread already has a context");
  }
  return container.newContext()->contextId();
}

[[noreturn]] void throw_backward_error(const Worker& worker, const std::string& message) {
  const std::string what =
      concat("rpc::AutogradContext::backward on ", worker.describe(worker.rank()));
  const auto lost = is_connection_error(message) ? worker.lost_worker() : lost_worker_in(message);
  ErrorFields fields{.operation = what, .timeout = worker.options().timeout};
  if (lost) {
    fields.ranks = {*lost};
    throw PeerLost(fields,
                   concat(worker.describe(*lost), " is gone; see its output for the reason"));
  }
  if (is_timeout(message)) {
    throw TimeoutError(
        fields, concat("a worker did not answer within ", worker.options().timeout.count(), " ms"));
  }
  throw Error(concat(what, ": ", message.substr(0, message.find('\n'))));
}

}  // namespace

AutogradContext::AutogradContext() : id_(new_context()) {}

AutogradContext::~AutogradContext() {
  try {
    auto& container = Container::getInstance();
    container.clearCurrentContext();
    // Without a session there is nobody to tell.
    if (current_worker_or_null()) container.releaseContext(id_);
  } catch (const std::exception& error) {
    log(LogLevel::kDebug, concat("rpc: context ", id_, ": ", error.what()));
  }
}

void AutogradContext::backward(const std::vector<at::Tensor>& roots, bool retain_graph) {
  const auto worker = current_worker();
  if (roots.empty()) throw UsageError("rpc::AutogradContext::backward: no roots");
  for (const at::Tensor& root : roots) {
    if (!root.defined() || root.numel() != 1 || !root.requires_grad()) {
      throw UsageError(
          concat("rpc::AutogradContext::backward: a root must be one number with a graph, such as "
                 "a loss; this one ",
                 !root.defined()     ? "is undefined"
                 : root.numel() != 1 ? concat("has ", root.numel(), " elements")
                                     : "requires no gradient"));
    }
  }
  try {
    torch_autograd::backward(id_, roots, retain_graph);
  } catch (const std::exception& error) {
    throw_backward_error(*worker, error_text(error));
  }
}

at::Tensor AutogradContext::gradient(const at::Tensor& parameter) const {
  return gradient_in_context(id_, parameter);
}

at::Tensor gradient_in_context(std::int64_t id, const at::Tensor& parameter) {
  try {
    const auto gradients = Container::getInstance().retrieveContext(id)->getGradients();
    const auto found = gradients.find(parameter);
    return found == gradients.end() ? at::Tensor() : found->value();
  } catch (const c10::Error&) {
    throw UsageError(concat("rpc: no autograd context ", id, " exists on this worker"));
  }
}

}  // namespace lockstep::rpc
