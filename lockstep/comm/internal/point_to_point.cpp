#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/internal/collective_call.h"
#include "lockstep/comm/internal/process_group_state.h"

namespace lockstep {
namespace {

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
  return start_message(call, tensor, target, options, [&](auto& backend, auto& terms) {
    return backend.send(tensor, target, tag, terms);
  });
}

Work ProcessGroup::recv(at::Tensor tensor, int source, int tag,
                        const CollectiveOptions& options) const {
  const CallSite call{"recv", state("recv")};
  check_tensor(call, "tensor", tensor);
  check_peer(call, "source", source);
  check_tag(call, tag);
  return start_message(call, tensor, source, options, [&](auto& backend, auto& terms) {
    return backend.recv(tensor, source, tag, terms);
  });
}

}  // namespace lockstep
