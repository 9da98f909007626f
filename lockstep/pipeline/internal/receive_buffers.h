#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace lockstep::inline internal {

/// Memory for what is received, used again once nothing refers to it any more.
class ReceiveBuffers {
 public:
  explicit ReceiveBuffers(c10::Device device) : device_(device) {}

  /// Contents are undefined.
  at::Tensor take(at::IntArrayRef sizes, at::ScalarType dtype);

 private:
  c10::Device device_;
  std::vector<at::Tensor> buffers_;
};

}  // namespace lockstep::inline internal
