#include "lockstep/snapshot/internal/state_copy.h"

#include <cstring>
#include <unordered_map>

#include <ATen/ops/empty.h>

#include "lockstep/snapshot/save.h"

namespace lockstep::inline internal {
namespace {

/// One copy in the making.
class CopiedTree {
 public:
  explicit CopiedTree(std::vector<at::Tensor>& buffers) : buffers_(buffers) {}

  c10::IValue make(const c10::IValue& value) {
    if (value.isTensor()) return make_tensor(value.toTensor());
    if (value.isGenericDict()) {
      c10::impl::GenericDict dict = make_dict();
      for (const auto& item : value.toGenericDict()) {
        dict.insert_or_assign(item.key(), make(item.value()));
      }
      return dict;
    }
    if (value.isList()) {
      c10::impl::GenericList list = make_list();
      for (const c10::IValue& item : value.toListRef()) list.push_back(make(item));
      return list;
    }
    return value;
  }

  std::size_t used() const { return used_; }

 private:
  at::Tensor make_tensor(const at::Tensor& tensor) {
    const c10::Storage& storage = tensor.storage();
    // From a GPU, or put together for this: nobody else can change it.
    if (storage.use_count() == 1) return tensor;
    const auto [known, is_new] = copies_.try_emplace(storage.unsafeGetStorageImpl());
    if (is_new) known->second = copy_of(storage);
    at::Tensor result = at::empty({0}, tensor.options());
    result.set_(known->second.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides());
    return result;
  }

  at::Tensor copy_of(const c10::Storage& storage) {
    const auto bytes = static_cast<std::int64_t>(storage.nbytes());
    if (used_ == buffers_.size()) buffers_.emplace_back();
    at::Tensor& buffer = buffers_[used_++];
    if (!buffer.defined() || buffer.numel() != bytes) {
      buffer = at::Tensor();  // Before the new one is made: never both.
      buffer = at::empty({bytes}, at::kByte);
    }
    if (bytes > 0) std::memcpy(buffer.mutable_data_ptr(), storage.data(), storage.nbytes());
    return buffer;
  }

  std::vector<at::Tensor>& buffers_;
  std::size_t used_ = 0;
  std::unordered_map<const c10::StorageImpl*, at::Tensor> copies_;
};

}  // namespace

c10::IValue StateCopy::take(const c10::IValue& writable) {
  CopiedTree tree(buffers_);
  const c10::IValue copy = tree.make(writable);
  buffers_.resize(tree.used());
  return copy;
}

}  // namespace lockstep::inline internal
