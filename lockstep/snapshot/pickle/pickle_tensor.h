#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

namespace lockstep::inline internal {

/// No tensor of PyTorch's has more.
inline constexpr std::size_t kMaxDimensions = 64;

/// The tensor of these sizes and strides, counted in elements, over the bytes of a storage.
/// Undefined when any element of it would lie outside of them, or a number makes no sense.
at::Tensor tensor_over(const at::Tensor& bytes, c10::ScalarType dtype, std::int64_t offset,
                       const std::vector<std::int64_t>& sizes,
                       const std::vector<std::int64_t>& strides);

}  // namespace lockstep::inline internal
