#include "lockstep/snapshot/internal/state_copy.h"

#include <cstring>
#include <unordered_map>

#include <ATen/ops/empty.h>

#include "lockstep/snapshot/internal/value_tree.h"

namespace lockstep::inline internal {

c10::IValue StateCopy::take(const c10::IValue& writable) {
  std::size_t used = 0;
  std::unordered_map<const c10::StorageImpl*, at::Tensor> copies;
  const auto copy_of = [&](const c10::Storage& storage) {
    const auto bytes = static_cast<std::int64_t>(storage.nbytes());
    if (used == buffers_.size()) buffers_.emplace_back();
    at::Tensor& buffer = buffers_[used++];
    if (!buffer.defined() || buffer.numel() != bytes) {
      buffer = at::Tensor();  // Before the new one is made: never both.
      buffer = at::empty({bytes}, at::kByte);
    }
    if (bytes > 0) std::memcpy(buffer.mutable_data_ptr(), storage.data(), storage.nbytes());
    return buffer;
  };
  const c10::IValue copy = map_tensors(writable, [&](const std::string&, const at::Tensor& tensor) {
    const c10::Storage& storage = tensor.storage();
    // From a GPU, or put together for this: nobody else can change it.
    if (storage.use_count() == 1) return tensor;
    const auto [known, is_new] = copies.try_emplace(storage.unsafeGetStorageImpl());
    if (is_new) known->second = copy_of(storage);
    at::Tensor result = at::empty({0}, tensor.options());
    result.set_(known->second.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides());
    return result;
  });
  buffers_.resize(used);
  return copy;
}

}  // namespace lockstep::inline internal
