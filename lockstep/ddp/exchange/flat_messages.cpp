#include "lockstep/ddp/exchange/flat_messages.h"

#include <map>
#include <string>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <c10/core/GradMode.h>

namespace lockstep::inline internal {
namespace {

// Bounds the memory that the copy takes; PyTorch's figure.
constexpr std::int64_t kMessageBytes = std::int64_t{250} << 20;
// A tensor that is larger is a message by itself: to join it would copy it twice.
constexpr std::int64_t kJoinedBytes = std::int64_t{1} << 20;

void exchange_message(const std::vector<at::Tensor>& tensors,
                      const std::function<bool(const at::Tensor&)>& exchange) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : tensors) flat.push_back(tensor.reshape({-1}));
  const at::Tensor message = flat.size() == 1 ? flat[0].contiguous() : at::cat(flat);
  // One tensor that lies in one piece is the message itself.
  if (!exchange(message) || message.is_alias_of(tensors[0])) return;
  const at::AutoDispatchBelowADInplaceOrView guard;
  std::int64_t offset = 0;
  for (at::Tensor tensor : tensors) {
    tensor.copy_(message.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
    offset += tensor.numel();
  }
}

}  // namespace

void exchange_flat(const std::vector<at::Tensor>& tensors,
                   const std::function<bool(const at::Tensor&)>& exchange) {
  const c10::NoGradGuard no_grad;
  struct Message {
    std::vector<at::Tensor> tensors;
    std::int64_t bytes = 0;
  };
  // One open message for each dtype and device, in the order in which they first come.
  std::map<std::pair<at::ScalarType, std::string>, Message> open;
  for (const at::Tensor& tensor : tensors) {
    if (static_cast<std::int64_t>(tensor.nbytes()) > kJoinedBytes) {
      exchange_message({tensor.detach()}, exchange);
      continue;
    }
    Message& message = open[{tensor.scalar_type(), tensor.device().str()}];
    message.tensors.push_back(tensor.detach());
    message.bytes += static_cast<std::int64_t>(tensor.nbytes());
    if (message.bytes >= kMessageBytes) {
      exchange_message(message.tensors, exchange);
      message = {};
    }
  }
  for (const auto& [kind, message] : open) {
    if (!message.tensors.empty()) exchange_message(message.tensors, exchange);
  }
}

void broadcast_tensors(const ProcessGroup& group, const std::vector<at::Tensor>& tensors,
                       int source) {
  if (group.world_size() == 1 || tensors.empty()) return;
  exchange_flat(tensors, [&](const at::Tensor& message) {
    group.broadcast(message.view(at::kByte), source);  // bytes: buffers may be of any dtype
    return group.rank() != source;
  });
}

}  // namespace lockstep::inline internal
