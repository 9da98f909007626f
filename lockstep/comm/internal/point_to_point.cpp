#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/internal/collective_call.h"
#include "lockstep/comm/internal/process_group_state.h"
#include "lockstep/comm/internal/timed_work.h"

namespace lockstep {
namespace {

// Other backends look at the timeout of the wait instead.
c10::intrusive_ptr<c10d::Work> with_timeout(c10::intrusive_ptr<c10d::Work> work,
                                            std::chrono::milliseconds timeout) {
  if (auto* const timed = dynamic_cast<TimedWork*>(work.get())) timed->set_timeout(timeout);
  return work;
}

// Gloo and MPI have no others.
void check_tag(const CallSite& call, int tag) {
  if (tag >= 0) return;
  throw UsageError(concat(call.operation, " of group '", call.group.name, "' on rank ",
                          call.group.rank, ": tag=", tag, "; 0 is the least"));
}

}  // namespace

Work ProcessGroup::send(at::Tensor tensor, int target, int tag,
                        const CollectiveOptions& options) const {
  const CallSite call{"send", state("send")};
  check_tensor(call, "tensor", tensor);
  check_peer(call, "target", target);
  check_tag(call, tag);
  return start_message(call, tensor, target, options, [&](c10d::Backend& backend, auto timeout) {
    std::vector<at::Tensor> tensors{tensor};
    return with_timeout(backend.send(tensors, target, tag), timeout);
  });
}

Work ProcessGroup::recv(at::Tensor tensor, int source, int tag,
                        const CollectiveOptions& options) const {
  const CallSite call{"recv", state("recv")};
  check_tensor(call, "tensor", tensor);
  check_peer(call, "source", source);
  check_tag(call, tag);
  return start_message(call, tensor, source, options, [&](c10d::Backend& backend, auto timeout) {
    std::vector<at::Tensor> tensors{tensor};
    return with_timeout(backend.recv(tensors, source, tag), timeout);
  });
}

}  // namespace lockstep
