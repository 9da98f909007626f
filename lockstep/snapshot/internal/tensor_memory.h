#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

namespace lockstep::inline internal {

/// Where the elements of a tensor are: equal for tensors that are one, such as tied weights.
struct TensorMemory {
  const void* storage = nullptr;
  std::int64_t offset = 0;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<std::int64_t> sizes = {};
  std::vector<std::int64_t> strides = {};

  auto operator<=>(const TensorMemory&) const = default;
};

/// Nullopt for a tensor without elements, which is tied to none.
inline std::optional<TensorMemory> memory_of(const at::Tensor& tensor) {
  if (!tensor.has_storage() || tensor.numel() == 0) return std::nullopt;
  return TensorMemory{.storage = tensor.storage().unsafeGetStorageImpl(),
                      .offset = tensor.storage_offset(),
                      .dtype = tensor.scalar_type(),
                      .sizes = tensor.sizes().vec(),
                      .strides = tensor.strides().vec()};
}

}  // namespace lockstep::inline internal
