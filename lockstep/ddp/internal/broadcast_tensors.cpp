#include "lockstep/ddp/internal/broadcast_tensors.h"

#include "lockstep/ddp/exchange/flat_messages.h"

namespace lockstep::inline internal {

void broadcast_tensors(const ProcessGroup& group, const std::vector<at::Tensor>& tensors,
                       int source) {
  if (group.world_size() == 1 || tensors.empty()) return;
  exchange_flat(tensors, [&](const at::Tensor& message) {
    group.broadcast(message.view(at::kByte), source);  // bytes: buffers may be of any dtype
    return group.rank() != source;
  });
}

}  // namespace lockstep::inline internal
