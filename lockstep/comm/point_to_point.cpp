#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/comm/collective_call.h"
#include "lockstep/comm/process_group_state.h"

namespace lockstep {

Work ProcessGroup::send(at::Tensor tensor, int target, int tag,
                        const CollectiveOptions& options) const {
  const CallSite call{"send", state("send")};
  check_tensor(call, "tensor", tensor);
  check_peer(call, "target", target);
  return start_message(call, tensor, options, [&](c10d::Backend& backend, auto) {
    std::vector<at::Tensor> tensors{tensor};
    return backend.send(tensors, target, tag);
  });
}

Work ProcessGroup::recv(at::Tensor tensor, int source, int tag,
                        const CollectiveOptions& options) const {
  const CallSite call{"recv", state("recv")};
  check_tensor(call, "tensor", tensor);
  check_peer(call, "source", source);
  return start_message(call, tensor, options, [&](c10d::Backend& backend, auto) {
    std::vector<at::Tensor> tensors{tensor};
    return backend.recv(tensors, source, tag);
  });
}

}  // namespace lockstep
