#include "lockstep/snapshot/pickle/pickle_tensor.h"

#include <cstddef>

#include <ATen/ops/empty.h>

namespace lockstep::inline internal {
namespace {

bool lies_within(std::int64_t elements, std::int64_t offset, const std::vector<std::int64_t>& sizes,
                 const std::vector<std::int64_t>& strides) {
  if (offset < 0 || sizes.size() != strides.size() || sizes.size() > kMaxDimensions) return false;
  std::int64_t count = 1;
  std::int64_t last = offset;
  bool empty = false;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    std::int64_t reach = 0;
    if (sizes[i] < 0 || strides[i] < 0) return false;
    if (sizes[i] == 0) {
      empty = true;
      continue;
    }
    if (__builtin_mul_overflow(sizes[i] - 1, strides[i], &reach) ||
        __builtin_add_overflow(last, reach, &last) ||
        __builtin_mul_overflow(count, sizes[i], &count)) {
      return false;
    }
  }
  return empty ? offset <= elements : last < elements;
}

}  // namespace

at::Tensor tensor_over(const at::Tensor& bytes, c10::ScalarType dtype, std::int64_t offset,
                       const std::vector<std::int64_t>& sizes,
                       const std::vector<std::int64_t>& strides) {
  const std::size_t elements = bytes.nbytes() / c10::elementSize(dtype);
  if (!lies_within(static_cast<std::int64_t>(elements), offset, sizes, strides)) return {};
  at::Tensor tensor = at::empty({0}, at::TensorOptions().dtype(dtype));
  tensor.set_(bytes.storage(), offset, sizes, strides);
  return tensor;
}

}  // namespace lockstep::inline internal
