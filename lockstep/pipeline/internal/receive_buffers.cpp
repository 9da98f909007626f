#include "lockstep/pipeline/internal/receive_buffers.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

namespace lockstep::inline internal {
namespace {

// Whether this handle is all that holds the memory.
bool is_free(const at::Tensor& buffer) {
  return buffer.storage().use_count() == 1;
}

}  // namespace

at::Tensor ReceiveBuffers::take(at::IntArrayRef sizes, at::ScalarType dtype) {
  const std::int64_t numel = c10::multiply_integers(sizes);
  const auto found = std::ranges::find_if(buffers_, [&](const at::Tensor& buffer) {
    return buffer.numel() == numel && buffer.scalar_type() == dtype && is_free(buffer);
  });
  if (found != buffers_.end()) return found->detach().view(sizes);
  // Of another shape than what comes now: it may not come again.
  std::erase_if(buffers_, is_free);
  buffers_.push_back(at::empty({numel}, at::TensorOptions(dtype).device(device_)));
  return buffers_.back().detach().view(sizes);
}

}  // namespace lockstep::inline internal
