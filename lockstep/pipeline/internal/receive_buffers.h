#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

namespace lockstep::inline internal {

/// Buffers for received tensors; a buffer is reused when no tensor refers to it.
class ReceiveBuffers {
 public:
  explicit ReceiveBuffers(c10::Device device) : device_(device) {}

  /// A tensor with undefined contents.
  at::Tensor take(at::IntArrayRef sizes, at::ScalarType dtype) {
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

 private:
  // Whether this handle is all that holds the memory.
  static bool is_free(const at::Tensor& buffer) { return buffer.storage().use_count() == 1; }

  c10::Device device_;
  std::vector<at::Tensor> buffers_;
};

}  // namespace lockstep::inline internal
