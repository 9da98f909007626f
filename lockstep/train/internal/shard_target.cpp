#include "lockstep/train/internal/shard_target.h"

#include <cstring>

#include "lockstep/comm/internal/element_of.h"
#include "lockstep/comm/kernels/reduce_kernel.h"

namespace lockstep::inline internal {

// Of x and -0 the sum with 0 differs from x.
void ShardTarget::put_zeros(at::Tensor part) const {
  if (is_sum) {
    part.add_(0);
  } else {
    part.zero_();
  }
}

void ShardTarget::put(at::Tensor part, const at::Tensor& value) const {
  if (is_sum) {
    part.add_(value.to(part.scalar_type()));
  } else {
    part.copy_(value);
  }
}

// Small tensors are many, and a tensor operation takes as long as to copy some KB.
void ShardTarget::put(std::size_t flat, std::int64_t from, const void* values,
                      std::int64_t elements) const {
  const at::Tensor& tensor = flats[flat];
  const Element element = element_of(tensor.scalar_type()).value();
  const std::size_t size = element_bytes(element);
  std::byte* const part =
      static_cast<std::byte*>(tensor.mutable_data_ptr()) + static_cast<std::size_t>(from) * size;
  const auto* const source = static_cast<const std::byte*>(values);
  const auto count = static_cast<std::size_t>(elements);
  if (is_sum) {
    const std::byte* const sources[] = {part, source};
    std::byte* const targets[] = {part};
    reduce({.element = element, .op = ReduceOp::kSum}, sources, targets, count);
  } else if (count > 0) {
    std::memcpy(part, source, count * size);
  }
}

}  // namespace lockstep::inline internal
