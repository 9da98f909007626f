#include "lockstep/ddp/broadcast_tensors.h"

#include <map>

#include <ATen/ops/cat.h>
#include <c10/core/GradMode.h>

namespace lockstep {
namespace {

// Bounds the memory that the copy takes; PyTorch's figure.
constexpr std::int64_t kMessageBytes = std::int64_t{250} << 20;

void broadcast_message(const ProcessGroup& group, const std::vector<at::Tensor>& tensors,
                       int source) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : tensors) flat.push_back(tensor.reshape({-1}));
  const at::Tensor message = flat.size() == 1 ? flat[0].contiguous() : at::cat(flat);
  group.broadcast(message.view(at::kByte), source);  // bytes: buffers may be of any dtype
  std::int64_t offset = 0;
  for (at::Tensor tensor : tensors) {
    tensor.copy_(message.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
    offset += tensor.numel();
  }
}

}  // namespace

void broadcast_tensors(const ProcessGroup& group, const std::vector<at::Tensor>& tensors,
                       int source) {
  if (group.world_size() == 1) return;
  const c10::NoGradGuard no_grad;
  struct Message {
    std::vector<at::Tensor> tensors;
    std::int64_t bytes = 0;
  };
  // One open message for each dtype and device, in the order in which they first come.
  std::map<std::pair<at::ScalarType, std::string>, Message> open;
  for (const at::Tensor& tensor : tensors) {
    Message& message = open[{tensor.scalar_type(), tensor.device().str()}];
    message.tensors.push_back(tensor.detach());
    message.bytes += static_cast<std::int64_t>(tensor.nbytes());
    if (message.bytes >= kMessageBytes) {
      broadcast_message(group, message.tensors, source);
      message = {};
    }
  }
  for (const auto& [kind, message] : open) {
    if (!message.tensors.empty()) broadcast_message(group, message.tensors, source);
  }
}

}  // namespace lockstep
